"""The gated delta rule over a run of tokens, in chunks, with a carried state.

S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - (exp(g_t) S_{t-1})^T k_t))^T,   o_t = S_t^T q_t
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

CHUNK = 32


@dataclass(frozen=True)
class Constants:
    """Tiles the kernel needs. Left out, they are uploaded on each call, which a trace forbids."""

    eye: Any
    tril: Any
    ones: Any
    masks: Any


def make_constants(ttnn: Any, device: Any) -> Constants:
    """[1, 1, 32, 32] identity, lower triangle and ones, [1, 1, 32, 96] masks of the top-left, bottom-right and
    bottom-left quadrants; float32, TILE. The kernel splits the chunk's triangular system along those quadrants."""
    low = torch.arange(CHUNK) < CHUNK // 2
    quadrants = [low[:, None] & low, ~low[:, None] & ~low, ~low[:, None] & low]
    ones = torch.ones(CHUNK, CHUNK)

    def upload(tile: torch.Tensor) -> Any:
        return ttnn.from_torch(
            tile.float().reshape(1, 1, *tile.shape), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=device
        )

    return Constants(upload(torch.eye(CHUNK)), upload(ones.tril()), upload(ones), upload(torch.cat(quadrants, dim=1)))


def chunk_gated_delta_rule(
    ttnn: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, constants: Constants
) -> Any:
    """Advance `state` by T tokens and return their outputs.

    q, k     [1, T, H * K] bfloat16, TILE, raw: the kernel L2-normalises them and scales q by K^-0.5
    v        [1, T, HV * V] bfloat16, TILE; V == K; HV a multiple of H; T a multiple of 32
    g, beta  [1, T, HV] float32, TILE; g is the LOG decay
    state    [1, HV, K, V] float32, TILE, overwritten
    returns  [HV, T, V] float32, head-major
    Source: Yang et al. 2024 (Gated Delta Networks); transformers `torch_chunk_gated_delta_rule`.
    """
    out, new_state = ttnn.transformer.chunk_gated_delta_rule(
        q,
        k,
        v,
        g,
        beta,
        initial_state=state,
        output_final_state=True,
        chunk_size=CHUNK,
        output_head_major=True,
        eye=constants.eye,
        tril=constants.tril,
        ones=constants.ones,
        masks=constants.masks,
    )
    ttnn.copy(new_state, state)
    return out
