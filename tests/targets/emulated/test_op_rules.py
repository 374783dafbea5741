"""Rules of single ops: each is broken once, and the refusal says what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ttkern.targets import open_target
from ttkern.targets.emulated import TtnnError

TARGET = open_target("emulated")
ttnn, DEVICE = TARGET.ttnn, TARGET.device
RM = ttnn.ROW_MAJOR_LAYOUT


def t(*shape: int, dtype: str = "bfloat16", layout: Any = ttnn.TILE_LAYOUT) -> Any:
    return ttnn.zeros(shape, dtype=getattr(ttnn, dtype), layout=layout, device=DEVICE)


def ints(*shape: int, dtype: str = "int32", value: int = 0) -> Any:
    return ttnn.full(shape, value, dtype=getattr(ttnn, dtype), layout=RM, device=DEVICE)


def fused_conv(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "input": t(1, 32, 160),
        "history": t(1, 3, 128, layout=RM),
        "tap": t(1, 1, 128),
        "chunk": 64,
    }
    given.update(changed)
    return ttnn.experimental.kda.qkv_causal_conv1d_silu(
        given["input"],
        given["history"],
        *[given["tap"]] * 4,
        32,
        32,
        64,
        actual_start=ints(1, dtype="uint32"),
        predecessor_carry=given["history"],
        program_config=ttnn.QkvCausalConv1dSiluProgramConfig(channel_chunk_size=given["chunk"]),
    )


def chunk_rule(tokens: int = 32, heads: int = 2, key_width: int = 32, **changed: Any) -> Any:
    value_heads = 2 * heads
    given: dict[str, Any] = {
        "q": t(1, tokens, heads * key_width),
        "k": t(1, tokens, heads * key_width),
        "v": t(1, tokens, value_heads * 32),
        "g": t(1, tokens, value_heads, dtype="float32"),
        "beta": t(1, tokens, value_heads, dtype="float32"),
        "initial_state": t(1, value_heads, 32, 32, dtype="float32"),
        "chunk_size": 32,
    }
    given.update(changed)
    inputs = [given.pop(name) for name in ("q", "k", "v", "g", "beta")]
    return ttnn.transformer.chunk_gated_delta_rule(*inputs, output_final_state=True, **given)


def in_capture(call: Callable[[], Any]) -> Any:
    trace = ttnn.begin_trace_capture(DEVICE)
    try:
        return call()
    finally:
        ttnn.end_trace_capture(DEVICE, trace)


def attend(start: int = 64, width: int = 8, chunk: int = 64, table: str = "int32") -> Any:
    return ttnn.transformer.chunked_scaled_dot_product_attention(
        t(1, 4, 64, 32),
        t(9, 2, 64, 32),
        t(9, 2, 64, 32),
        ints(1, width, dtype=table),
        chunk_start_idx_tensor=ints(1, value=start),
        program_config=ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=DEVICE.compute_with_storage_grid_size(),
            q_chunk_size=chunk,
            k_chunk_size=chunk,
        ),
    )


def fill(dtype: str = "bfloat16", table: str = "int32", heads: int = 2, block: int = 0, tokens: int = 64) -> None:
    ttnn.experimental.paged_fill_cache(
        t(9, 2, 64, 32), t(1, heads, tokens, 32, dtype=dtype), ints(1, 1, dtype=table, value=block), batch_idx=0
    )


RULES: dict[str, tuple[Callable[[], Any], str]] = {
    "add of row-major": (lambda: ttnn.add(t(32, 32, layout=RM), t(32, 32)), "input_tensor_a has layout ROW_MAJOR"),
    "add of shapes that do not broadcast": (lambda: ttnn.add(t(32, 32), t(32, 64)), "do not broadcast"),
    "linear of row-major": (lambda: ttnn.linear(t(32, 32, layout=RM), t(32, 32)), "must be TILE"),
    "linear of other widths": (lambda: ttnn.linear(t(32, 64), t(32, 32)), "inner widths differ"),
    "linear of integers": (lambda: ttnn.linear(t(32, 32, dtype="int32"), t(32, 32)), "has dtype INT32"),
    "rms_norm of row-major": (lambda: ttnn.rms_norm(t(32, 32, layout=RM)), "must be TILE"),
    "rms_norm with a short weight": (lambda: ttnn.rms_norm(t(32, 64), weight=t(1, 32)), "does not cover a width of 64"),
    "embedding with float32 weights": (
        lambda: ttnn.embedding(ints(1, 4, dtype="uint32"), t(1, 1, 8, 32, dtype="float32", layout=RM)),
        "weight has dtype FLOAT32; it must be BFLOAT16",
    ),
    "embedding by int32": (lambda: ttnn.embedding(ints(1, 4), t(1, 1, 8, 32, layout=RM)), "has dtype INT32"),
    "embedding beyond the table": (
        lambda: ttnn.embedding(ints(1, 4, dtype="uint32", value=8), t(1, 1, 8, 32, layout=RM)),
        "outside the table's 8 rows",
    ),
    "copy between dtypes": (lambda: ttnn.copy(t(32, 32), t(32, 32, dtype="float32")), "it must be FLOAT32"),
    "copy between shapes": (lambda: ttnn.copy(t(32, 32), t(32, 64)), "shapes differ"),
    "concat of layouts": (lambda: ttnn.concat([t(32, 32), t(32, 32, layout=RM)], dim=0), "must be TILE"),
    "slice beyond the end": (lambda: ttnn.slice(t(32, 32), [0, 0], [33, 32]), r"\[0, 33\) is not within axis 0"),
    "reshape of another size": (lambda: ttnn.reshape(t(32, 32), (32, 33)), "1024 elements"),
    "where of dtypes": (lambda: ttnn.where(t(32, 32), t(32, 32), t(32, 32, dtype="float32")), "must be FLOAT32"),
    "conv of 33 tokens": (lambda: fused_conv(input=t(1, 33, 160)), "T is 33"),
    "conv with a tiled history": (lambda: fused_conv(history=t(1, 3, 128)), "history has layout TILE"),
    "conv with a short tap": (lambda: fused_conv(tap=t(1, 1, 96)), "96 of 128 channels"),
    "conv in blocks that do not divide": (lambda: fused_conv(chunk=96), "must divide"),
    "conv beyond L1": (
        lambda: ttnn.experimental.kda.qkv_causal_conv1d_silu(
            t(1, 32, 4096),
            t(1, 3, 4096, layout=RM),
            *[t(1, 1, 4096)] * 4,
            1024,
            1024,
            2048,
            actual_start=ints(1, dtype="uint32"),
            predecessor_carry=t(1, 3, 4096, layout=RM),
            program_config=ttnn.QkvCausalConv1dSiluProgramConfig(channel_chunk_size=2048),
        ),
        "channel_chunk_size = 2048 needs 1587456 bytes of L1 per core, only 1461120",
    ),
    "delta rule over 33 tokens": (lambda: chunk_rule(tokens=33), "T is 33; it must be a multiple of 32"),
    "delta rule with K that is not V": (lambda: chunk_rule(heads=1, key_width=40), "K must equal V"),
    "delta rule in chunks of 64": (lambda: chunk_rule(chunk_size=64), "chunk_size is 64"),
    "delta rule on more heads than cores": (lambda: chunk_rule(heads=66), "at most 130"),
    "delta rule with row-major gates": (
        lambda: chunk_rule(g=t(1, 32, 4, dtype="float32", layout=RM)),
        "g has layout ROW_MAJOR",
    ),
    "delta rule with another state": (
        lambda: chunk_rule(initial_state=t(1, 2, 32, 32, dtype="float32")),
        r"initial_state is \[1, 2, 32, 32\]",
    ),
    "delta rule that uploads in a capture": (lambda: in_capture(chunk_rule), "not supported during trace capture"),
    "recurrent rule on more heads than cores": (
        lambda: ttnn.transformer.fused_recurrent_gated_delta_rule(
            t(9, 1, 16, 32), t(9, 1, 16, 32), t(9, 1, 16, 32), *[t(9, 1, 16, dtype="float32")] * 2
        ),
        "at most 130",
    ),
    "gated norm of 8 tokens": (
        lambda: ttnn.experimental.kda.sigmoid_gated_rms_norm(t(2, 8, 32), t(1, 8, 64), t(32), 2),
        "sequence is 8",
    ),
    "chunk start off the grid": (lambda: attend(start=96), "chunk start 96 is not a multiple of q_chunk_size 64"),
    "page table of 12": (lambda: attend(width=12), "page table stick size must be a multiple of 32"),
    "page table of uint32": (lambda: attend(table="uint32"), "page_table has dtype UINT32; it must be INT32"),
    "chunk beyond the page table": (lambda: attend(start=512), "holds 512 tokens"),
    "fill of another dtype": (lambda: fill(dtype="float32"), "has dtype FLOAT32; it must be BFLOAT16"),
    "fill by uint32": (lambda: fill(table="uint32"), "must be INT32"),
    "fill of other heads": (lambda: fill(heads=3), r"wanted \[1, 2, S, 32\]"),
    "fill of a block that is not there": (lambda: fill(block=9), "outside the cache's 9"),
    "fill of more than the table": (lambda: fill(tokens=128), "1 entries for 2 blocks"),
    "update that is not sharded": (
        lambda: ttnn.experimental.paged_update_cache(
            t(9, 2, 64, 32), t(1, 3, 2, 32), update_idxs_tensor=ints(3), page_table=ints(3, 8)
        ),
        "must be height sharded",
    ),
    "heads that do not split": (
        lambda: ttnn.experimental.nlp_create_qkv_heads(t(1, 1, 32, 200), num_heads=4, num_kv_heads=1),
        "does not split",
    ),
    "rotary of 96": (
        lambda: ttnn.experimental.rotary_embedding_hf(t(1, 2, 32, 96), *[t(1, 1, 32, 96)] * 2),
        "head_dim is 96",
    ),
    "more cores than the card has": (
        lambda: ttnn.num_cores_to_corerangeset(131, DEVICE.compute_with_storage_grid_size(), True),
        "the grid has 130",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_refused(rule: str) -> None:
    call, words = RULES[rule]
    with pytest.raises(TtnnError, match=words):
        call()


def test_what_the_rules_are_broken_from_is_accepted() -> None:
    fused_conv()
    chunk_rule()
    attend()
    fill()
    assert torch.equal(ttnn.to_torch(ttnn.add(t(32, 32), 1.0)), torch.ones(32, 32, dtype=torch.bfloat16))
