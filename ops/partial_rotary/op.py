"""Rotary embedding of the first `rotary_dim` entries of a head.

ttnn's rotary op turns a whole head: entry i with entry i + D/2. Qwen3.5 turns only the first quarter: entry i with
entry i + rotary_dim/2. The head's entries are therefore stored in another order (`head_order`), the same for q, k and
their norms, so that q . k is unchanged, and entries that do not turn get cos = 1 and sin = 0. That is one op per
tensor instead of two slices, a rotation and a concat.
"""

from __future__ import annotations

from typing import Any

import torch


def head_order(head_dim: int, rotary_dim: int) -> torch.Tensor:
    """Which entry of the checkpoint's head stands at each place of ours: int64 [head_dim].

    The turning pairs (i, i + rotary_dim/2) go to (i, i + head_dim/2); the rest fills what is left, in order.
    """
    half, turn = head_dim // 2, rotary_dim // 2
    rest = torch.arange(rotary_dim, head_dim)
    order = torch.empty(head_dim, dtype=torch.int64)
    order[:turn] = torch.arange(turn)
    order[half : half + turn] = torch.arange(turn, rotary_dim)
    order[turn:half] = rest[: half - turn]
    order[half + turn :] = rest[half - turn :]
    return order


def rotary_tables(length: int, head_dim: int, rotary_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each float32 [length, head_dim], in `head_order`.

    Angles are computed as transformers does, in float32: position * theta^(-2i / rotary_dim).
    """
    inverse_frequency = 1.0 / (theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim))
    angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse_frequency
    half, turn = head_dim // 2, rotary_dim // 2
    cos, sin = torch.ones(length, head_dim), torch.zeros(length, head_dim)
    for begin in (0, half):
        cos[:, begin : begin + turn] = angles.cos()
        sin[:, begin : begin + turn] = angles.sin()
    return cos, sin


def look_up(ttnn: Any, positions: Any, table: Any) -> Any:
    """Rows of a rotary table for this step's positions.

    positions  [1, T] uint32, ROW_MAJOR
    table      [1, 1, length, D] bfloat16, ROW_MAJOR
    returns    [1, 1, T, D] bfloat16, TILE
    """
    rows = ttnn.embedding(positions, table, layout=ttnn.TILE_LAYOUT)
    return ttnn.reshape(rows, (1, 1, positions.shape[1], table.shape[3]))


def rotate(ttnn: Any, x: Any, cos: Any, sin: Any) -> Any:
    """x * cos + rotate_half(x) * sin.

    x         [1, heads, T, D] bfloat16, TILE, entries in `head_order`
    cos, sin  [1, 1, T, D] bfloat16, TILE
    returns   [1, heads, T, D] bfloat16
    Source: transformers `apply_rotary_pos_emb`.
    """
    return ttnn.experimental.rotary_embedding_hf(x, cos, sin)
