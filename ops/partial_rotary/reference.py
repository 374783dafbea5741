"""Rotary embedding of a part of each head. Source: transformers `apply_rotary_pos_emb` with `rotate_half`."""

import torch


def rotate_checkpoint_order(x: torch.Tensor, positions: torch.Tensor, rotary_dim: int, theta: float) -> torch.Tensor:
    """x [1, heads, T, D] with its entries as the checkpoint has them; positions [T]."""
    frequency = theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    angle = positions[:, None].float() * frequency
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    turning, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    first, second = turning.chunk(2, dim=-1)
    return torch.cat([turning * cos + torch.cat([-second, first], dim=-1) * sin, rest], dim=-1)


def partial_rotary(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_table: torch.Tensor,
    sin_table: torch.Tensor,
    *,
    order: torch.Tensor,
    rotary_dim: int,
    theta: float,
) -> tuple[torch.Tensor]:
    """x [1, heads, T, D] with entry i of the checkpoint's head at the place where `order` holds i."""
    as_stored = torch.empty_like(x)
    as_stored[..., order] = x
    return (rotate_checkpoint_order(as_stored, positions[0], rotary_dim, theta)[..., order],)
