"""Ops: one folder each, with its reference, cases and variants. The only code that calls ttnn compute."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.registry import Op

FOLDERS = (
    "embedding",
    "rms_norm",
    "gated_rms_norm",
    "linear",
    "swiglu_mlp",
    "partial_rotary",
    "gated_attention",
    "causal_conv",
    "delta_gates",
    "chunk_gated_delta_rule",
    "recurrent_gated_delta_rule",
    "lm_head",
    "argmax",
    "gdn_layer",
    "gdn_snapshot",
    "attention_layer",
)


@lru_cache(maxsize=1)
def all_ops() -> dict[str, Op]:
    """Every op by name; a folder's `OPS` lists what it holds."""
    found = [op for folder in FOLDERS for op in importlib.import_module(f"ops.{folder}").OPS]
    return {op.name: op for op in found}
