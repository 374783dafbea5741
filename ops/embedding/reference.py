"""Rows of a table by id. Source: torch `nn.Embedding`, as transformers uses it."""

import torch


def embedding(ids: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor]:
    """ids [B, T]; table [1, 1, vocab, D]; returns [B, T, D]."""
    return (table[0, 0][ids],)
