"""Final norm and projection. Source: transformers `Qwen3_5ForCausalLM.forward`."""

import torch

from ops.rms_norm.reference import rms_norm


def lm_head(x: torch.Tensor, gamma: torch.Tensor, weight: torch.Tensor, *, eps: float) -> tuple[torch.Tensor]:
    """x [1, N, D]; gamma [1, D]; weight [D, vocab]."""
    return (rms_norm(x, gamma, eps=eps)[0] @ weight,)
