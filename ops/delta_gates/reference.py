"""The delta rule's gates. Source: transformers `Qwen3_5GatedDeltaNet.forward`."""

import torch
from torch.nn import functional


def delta_gates(
    x: torch.Tensor,
    w_beta: torch.Tensor,
    w_decay: torch.Tensor,
    dt_bias: torch.Tensor,
    neg_a: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [1, T, D]; returns g (log decay) and beta, [1, T, HV] each, 0 where mask [1, T, 1] is 0."""
    real = 1.0 if mask is None else mask
    return neg_a[0] * functional.softplus(x @ w_decay + dt_bias) * real, torch.sigmoid(x @ w_beta) * real
