"""Depthwise causal convolution of width 4 over q | k | v, with SiLU, carried from step to step.

The carry is the last 3 columns BEFORE the convolution. Narrower convolutions get leading taps of zero.
Prefill keeps one sequence's carry as [1, 3, C] ROW_MAJOR, which is what ttnn's kernel reads; decode keeps all
sequences' carries time-major, [1, 3, B, C] TILE, so that shifting them is tile-aligned data movement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WIDTH = 4
# The kernel keeps taps, history and rows of so many channels in L1; 2,048 asks for more than a core has.
MAX_CHANNELS_AT_ONCE = 1024


def channels_at_once(channels: int) -> int:
    """The largest multiple of 32 up to MAX_CHANNELS_AT_ONCE that divides the channels, which the kernel demands."""
    return max(n for n in range(32, min(channels, MAX_CHANNELS_AT_ONCE) + 1, 32) if channels % n == 0)


def prefill(
    ttnn: Any, projected: Any, history: Any, taps: Sequence[Any], zero: Any, *, key_dim: int, value_dim: int
) -> tuple[Any, Any, Any]:
    """SiLU(conv(x)), split into q, k and v by one kernel.

    projected  [1, T, W] bfloat16, TILE; the first C = 2 key_dim + value_dim columns are x; T a multiple of 32
    history    [1, 3, C] bfloat16, ROW_MAJOR: the three columns before x
    taps       four of [1, 1, C] bfloat16, TILE, oldest first
    zero       [1] uint32, ROW_MAJOR, holding 0: this call's x begins the interval
    returns    q, k [1, T, key_dim], v [1, T, value_dim], bfloat16
    Source: transformers `causal_conv1d_fn`.
    """
    return ttnn.experimental.kda.qkv_causal_conv1d_silu(
        projected,
        history,
        *taps,
        key_dim,
        key_dim,
        value_dim,
        actual_start=zero,
        predecessor_carry=history,
        program_config=ttnn.QkvCausalConv1dSiluProgramConfig(channel_chunk_size=channels_at_once(history.shape[2])),
    )


def carry_full(ttnn: Any, projected: Any, history: Any) -> None:
    """Replace `history` by the last 3 columns of a step in which every token is real.

    projected [1, T, W] bfloat16, TILE; history [1, 3, C] bfloat16, ROW_MAJOR, overwritten
    """
    tokens, channels = projected.shape[1], history.shape[2]
    last_tile = ttnn.to_layout(ttnn.slice(projected, [0, tokens - 32, 0], [1, tokens, channels]), ttnn.ROW_MAJOR_LAYOUT)
    ttnn.copy(ttnn.slice(last_tile, [0, 29, 0], [1, 32, channels]), history)


def carry_masked(ttnn: Any, projected: Any, history: Any, carry_rows: Any) -> None:
    """Replace `history` by the last 3 REAL columns of a padded step.

    carry_rows  [1, 3] uint32, ROW_MAJOR: valid_len + 0, 1, 2: rows of history followed by x
    """
    tokens, channels = projected.shape[1], history.shape[2]
    x = ttnn.to_layout(ttnn.slice(projected, [0, 0, 0], [1, tokens, channels]), ttnn.ROW_MAJOR_LAYOUT)
    ttnn.copy(ttnn.embedding(carry_rows, ttnn.concat([history, x], dim=1)), history)


def decode(ttnn: Any, x: Any, carry: Any, early_taps: Any, last_tap: Any) -> Any:
    """One column per sequence; the carry moves on by one.

    x           [1, 1, B, C] bfloat16, TILE
    carry       [1, 3, B, C] bfloat16, TILE, overwritten
    early_taps  [1, 3, 1, C] bfloat16, TILE; last_tap [1, 1, 1, C] bfloat16, TILE
    returns     [1, 1, B, C] bfloat16
    Source: transformers `causal_conv1d_update`.
    """
    rows, channels = x.shape[2], x.shape[3]
    early = ttnn.sum(ttnn.mul(carry, early_taps, dtype=ttnn.float32), dim=1, keepdim=True)
    y = ttnn.add(
        ttnn.mul(x, last_tap, dtype=ttnn.float32), early, activations=[ttnn.UnaryOpType.SILU], dtype=ttnn.bfloat16
    )
    ttnn.copy(ttnn.concat([ttnn.slice(carry, [0, 1, 0, 0], [1, 3, rows, channels]), x], dim=1), carry)
    return y


def store(ttnn: Any, history: Any, carry: Any, row_mask: Any) -> None:
    """Put a prefilled sequence's carry into its decode row; other rows keep theirs.

    history [1, 3, C] ROW_MAJOR; carry [1, 3, B, C] TILE, overwritten; row_mask [1, 1, B, 1] bfloat16, 1 in that row
    """
    channels = history.shape[2]
    one_row = ttnn.to_layout(ttnn.reshape(history, (1, 3, 1, channels)), ttnn.TILE_LAYOUT)
    ttnn.copy(ttnn.where(row_mask, one_row, carry), carry)
