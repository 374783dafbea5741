"""Causal attention with a gated output, over K and V as one run of tokens. Source: transformers `Qwen3_5Attention`."""

import torch


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int) -> torch.Tensor:
    """q [H, T, D] at positions first..; k, v [kv, N, D]; query t sees keys 0 .. first + t. Returns [H, T, D]."""
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = torch.arange(k.shape[1]) > first + torch.arange(q.shape[1])[:, None]
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ v


def unpage(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """cache [blocks, kv, block, D] read through table [W]: [kv, length, D]."""
    return torch.cat(list(cache[table]), dim=1)[:, :length]


def prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate_logits: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    fill_table: torch.Tensor,
    chunk_start_idx: torch.Tensor,
    **_: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gated output [1, T, H * D] and the caches with this step's K and V in them."""
    start, tokens, block = int(chunk_start_idx[0]), q.shape[2], k_cache.shape[2]
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    for token in range(tokens):
        place = int(fill_table[0, token // block]), slice(None), token % block
        k_cache[place], v_cache[place] = k[0, :, token], v[0, :, token]
    keys, values = (unpage(cache, page_table[0], start + tokens) for cache in (k_cache, v_cache))
    out = attend(q[0], keys, values, start).transpose(0, 1).reshape(1, tokens, -1)
    return out * torch.sigmoid(gate_logits), k_cache, v_cache


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate_logits: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    positions: torch.Tensor,
    **_: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [1, H, B, D]: one token per row. The gated output [1, B, H * D] and the caches with the new tokens in them."""
    k_cache, v_cache, block = k_cache.clone(), v_cache.clone(), k_cache.shape[2]
    rows = []
    for row, position in enumerate(positions.tolist()):
        place = int(page_table[row, position // block]), slice(None), position % block
        k_cache[place], v_cache[place] = k[0, :, row], v[0, :, row]
    for row, position in enumerate(positions.tolist()):
        keys, values = (unpage(cache, page_table[row], position + 1) for cache in (k_cache, v_cache))
        rows.append(attend(q[0, :, row : row + 1], keys, values, position).reshape(1, -1))
    return torch.stack(rows, dim=1) * torch.sigmoid(gate_logits), k_cache, v_cache
