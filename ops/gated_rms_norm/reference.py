"""Per-head RMSNorm times SiLU(z). Source: transformers `Qwen3_5RMSNormGated`."""

import torch
from torch.nn import functional


def gated_rms_norm(
    o: torch.Tensor, projected: torch.Tensor, gamma: torch.Tensor, *, value_heads: int, z_offset: int, eps: float
) -> tuple[torch.Tensor]:
    """o [T, HV, V], token-major; z in HV * V columns of projected [1, T, W] from z_offset on; [1, T, HV * V] out."""
    tokens, heads, width = o.shape
    normed = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + eps) * gamma.reshape(-1)
    z = projected[0, :, z_offset : z_offset + heads * width]
    return ((normed.reshape(tokens, -1) * functional.silu(z)).unsqueeze(0),)


def prefill(o: torch.Tensor, projected: torch.Tensor, gamma: torch.Tensor, **params: float) -> tuple[torch.Tensor]:
    """o [HV, T, V], head-major."""
    return gated_rms_norm(o.transpose(0, 1), projected, gamma, **params)  # type: ignore[arg-type]


def decode(o: torch.Tensor, projected: torch.Tensor, gamma_rows: torch.Tensor, **params: float) -> tuple[torch.Tensor]:
    """o [B, 1, HV, V]."""
    return gated_rms_norm(o[:, 0], projected, gamma_rows, **params)  # type: ignore[arg-type]
