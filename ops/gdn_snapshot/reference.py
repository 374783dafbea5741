"""What a restored state is: the captured one, whatever happened since."""

from __future__ import annotations

import torch


def snapshot(
    recurrent_state: torch.Tensor, conv_state: torch.Tensor, later_recurrent: torch.Tensor, later_conv: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Capture, overwrite with the later state, restore."""
    return recurrent_state, conv_state


def extract_row(
    recurrent_state: torch.Tensor,
    conv_state: torch.Tensor,
    begin: torch.Tensor,
    end: torch.Tensor,
    carry_rows: torch.Tensor,
    state: torch.Tensor,
    history: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row `begin[0]` of both: [1, HV, K, V] and [1, 3, C]."""
    row = int(begin[0])
    return recurrent_state[row : row + 1], conv_state[:, :, row]
