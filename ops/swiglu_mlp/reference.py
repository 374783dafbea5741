"""SwiGLU feed-forward. Source: transformers `Qwen3_5MLP`."""

import torch
from torch.nn import functional


def swiglu_mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor]:
    """x [1, T, D]; gate, up [D, F]; down [F, D]."""
    return ((functional.silu(x @ gate) * (x @ up)) @ down,)
