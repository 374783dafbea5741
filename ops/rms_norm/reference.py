"""RMSNorm. Source: transformers `Qwen3_5RMSNorm`, whose weight is stored minus 1."""

import torch


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, *, eps: float) -> tuple[torch.Tensor]:
    """x [..., D]; gamma [1, D]: 1 + the checkpoint's weight."""
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gamma[0],)
