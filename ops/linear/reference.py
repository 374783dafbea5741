"""Matrix product. Source: torch `nn.Linear`, with the weight transposed."""

import torch


def linear(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
    """x [..., K]; weight [K, N]."""
    return (x @ weight,)
