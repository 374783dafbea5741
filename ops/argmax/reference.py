"""Greedy choice. Source: torch.argmax; among equals the first."""

import torch


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor]:
    """logits [1, N, vocab]; returns [1, N]."""
    return (logits.argmax(dim=-1),)
