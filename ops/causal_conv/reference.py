"""Depthwise causal convolution with a carry. Source: transformers `causal_conv1d_fn` and `causal_conv1d_update`."""

import torch
from torch.nn import functional


def convolve(x: torch.Tensor, history: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """x [T, C], history [3, C] (the columns before), taps [4, C], oldest first; returns SiLU of it, [T, C]."""
    columns = torch.cat([history, x]).T.unsqueeze(0)
    return functional.silu(functional.conv1d(columns, taps.T.unsqueeze(1), groups=x.shape[1]))[0].T


def prefill(
    projected: torch.Tensor,
    history: torch.Tensor,
    tap0: torch.Tensor,
    tap1: torch.Tensor,
    tap2: torch.Tensor,
    tap3: torch.Tensor,
    zero: torch.Tensor,
    carry_rows: torch.Tensor | None = None,
    *,
    key_dim: int,
    value_dim: int,
) -> tuple[torch.Tensor, ...]:
    """q, k, v and the new history; with carry_rows, rows of padding come back as 0."""
    x = projected[0, :, : history.shape[2]]
    valid = x.shape[0] if carry_rows is None else int(carry_rows[0, 0])
    y = convolve(x, history[0], torch.stack([t.reshape(-1) for t in (tap0, tap1, tap2, tap3)]))
    y[valid:] = 0
    carried = torch.cat([history[0], x])[valid : valid + 3].unsqueeze(0)
    return (*y.unsqueeze(0).split([key_dim, key_dim, value_dim], dim=-1), carried)


def decode(
    x: torch.Tensor, carry: torch.Tensor, early_taps: torch.Tensor, last_tap: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [1, 1, B, C], carry [1, 3, B, C]; returns the outputs and the carry after them."""
    taps = torch.cat([early_taps[0, :, 0], last_tap[0, :, 0]])
    rows = [convolve(x[0, 0, b : b + 1], carry[0, :, b], taps) for b in range(x.shape[2])]
    return torch.cat(rows).reshape(x.shape), torch.cat([carry[:, 1:], x], dim=1)


def store(history: torch.Tensor, carry: torch.Tensor, row_mask: torch.Tensor) -> tuple[torch.Tensor]:
    """carry [1, 3, B, C] with one row replaced by history [1, 3, C]."""
    carry = carry.clone()
    carry[:, :, int(row_mask[0, 0, :, 0].argmax())] = history
    return (carry,)
