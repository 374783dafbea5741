"""The Qwen3.5 decoder on one screen: embedding, layers, head, for a prefill step and for a decode step.

It knows tensors, not requests. Everything that changes between steps is in the input dataclasses, whose tensors keep
their addresses, so each function can be captured once as a trace and replayed for any position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ops.argmax.op import argmax
from ops.attention_layer import op as attention_layer
from ops.attention_layer.op import AttentionShape, AttentionWeights, DecodeTables, KvCache, PrefillTables
from ops.embedding.op import embedding, gather_rows
from ops.gdn_layer import op as gdn_layer
from ops.gdn_layer.op import GdnDecodeState, GdnPrefillState, GdnShape
from ops.lm_head.op import lm_head
from ops.partial_rotary.op import look_up
from ttkern.model.config import ModelConfig
from ttkern.model.device_weights import DecoderWeights

HEAD_ROWS = 32  # rows of the head at once: a tile's height, so that one row costs the same


@dataclass(frozen=True)
class PrefillInputs:
    """Device tensors of one prefill step of `T` tokens, all ROW_MAJOR unless said.

    token_ids, positions  [1, T] uint32
    chunk_start_idx       [1] int32
    page_table            [1, W] int32; fill_table [1, F] int32
    rows                  [1, 32] uint32: which rows' logits are wanted; in a masked bucket [1, 35]: then the 3 rows
                          that `causal_conv.carry_masked` wants
    mask                  [1, T, 1] float32 TILE in a masked bucket, else None
    """

    token_ids: Any
    positions: Any
    chunk_start_idx: Any
    page_table: Any
    fill_table: Any
    rows: Any
    mask: Any = None

    def wanted_rows(self, ttnn: Any) -> Any:
        """[1, 32] uint32."""
        return self.rows if self.mask is None else ttnn.slice(self.rows, [0, 0], [1, HEAD_ROWS])

    def carry_rows(self, ttnn: Any) -> Any:
        """[1, 3] uint32, None where every token is real."""
        return None if self.mask is None else ttnn.slice(self.rows, [0, HEAD_ROWS], [1, HEAD_ROWS + 3])


@dataclass(frozen=True)
class DecodeInputs:
    """token_ids, positions [1, B] uint32; cache_positions [B] int32; page_table [B, W] int32; ROW_MAJOR."""

    token_ids: Any
    positions: Any
    cache_positions: Any
    page_table: Any


@dataclass(frozen=True)
class StoreInputs:
    """Which decode row takes over the prefilled state: slot [1, 1] int32, and `eye` [1, 1, B, B] bfloat16, whose row
    of the same number masks that row. ROW_MAJOR."""

    slot: Any
    eye: Any


@dataclass(frozen=True)
class DecoderState:
    """What the layers remember. `prefill` and `decode` hold one entry per GDN layer, `kv` one per attention layer."""

    prefill: tuple[GdnPrefillState, ...]
    decode: tuple[GdnDecodeState, ...]
    kv: tuple[KvCache, ...]


class Decoder:
    """The model's forward passes on one target."""

    def __init__(self, target: Any, config: ModelConfig, weights: DecoderWeights, *, attention_chunk: int) -> None:
        """attention_chunk: tokens the attention kernels work on at once; every step must start at a multiple of it."""
        self.target, self.config, self.weights = target, config, weights
        self.gdn_shape = GdnShape(
            config.linear_num_key_heads, config.linear_num_value_heads, config.linear_key_head_dim, config.rms_norm_eps
        )
        self.attention_shape = AttentionShape(
            config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps, attention_chunk
        )

    def allocate_state(self, *, num_blocks: int, block_size: int, rows: int, kv_dtype: str) -> DecoderState:
        """All states, zeroed, and caches, unwritten: num_blocks KV blocks of block_size tokens, `rows` decode rows."""
        ttnn, device, shape = self.target.ttnn, self.target.device, self.gdn_shape
        gdn = self.config.layer_types.count("linear_attention")
        heads, k = shape.value_heads, shape.head_dim

        def zeros(dims: tuple[int, ...], dtype: Any, layout: Any) -> Any:
            return ttnn.zeros(dims, dtype=dtype, layout=layout, device=device)

        def empty(dims: tuple[int, ...], dtype: Any, layout: Any) -> Any:
            # Not zeros: ttnn makes those on the host, tensor by tensor, and nothing of the pool is read before written.
            return ttnn.empty(dims, dtype=dtype, layout=layout, device=device)

        tile = ttnn.TILE_LAYOUT
        cache = (num_blocks, self.config.num_key_value_heads, block_size, self.config.head_dim)
        dtype = getattr(ttnn, kv_dtype)
        return DecoderState(
            prefill=tuple(self.empty_prefill_state() for _ in range(gdn)),
            decode=tuple(
                GdnDecodeState(
                    zeros((rows, heads, k, k), ttnn.float32, tile),
                    zeros((1, 3, rows, shape.conv_dim), ttnn.bfloat16, tile),
                )
                for _ in range(gdn)
            ),
            kv=tuple(
                KvCache(empty(cache, dtype, tile), empty(cache, dtype, tile))
                for _ in range(self.config.num_hidden_layers - gdn)
            ),
        )

    def empty_prefill_state(self) -> GdnPrefillState:
        """One GDN layer's state before the first token: zeros."""
        ttnn, device, shape = self.target.ttnn, self.target.device, self.gdn_shape
        state, columns = (1, shape.value_heads, shape.head_dim, shape.head_dim), (1, 3, shape.conv_dim)
        return GdnPrefillState(
            ttnn.zeros(state, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=device),
            ttnn.zeros(columns, dtype=ttnn.bfloat16, layout=ttnn.ROW_MAJOR_LAYOUT, device=device),
        )

    def prefill(self, inputs: PrefillInputs, state: DecoderState) -> tuple[Any, Any]:
        """One prefill step: hidden states of its tokens, [1, T, D] ROW_MAJOR, and of the wanted ones, [1, 32, D]."""
        ttnn, weights = self.target.ttnn, self.weights
        tables = PrefillTables(
            inputs.page_table,
            inputs.fill_table,
            inputs.chunk_start_idx,
            look_up(ttnn, inputs.positions, weights.cos),
            look_up(ttnn, inputs.positions, weights.sin),
        )
        carry_rows = inputs.carry_rows(ttnn)
        recurrent, caches = iter(state.prefill), iter(state.kv)
        x = embedding(ttnn, inputs.token_ids, weights.embed)
        for layer in weights.layers:
            if isinstance(layer, AttentionWeights):
                x = attention_layer.prefill(ttnn, x, layer, self.attention_shape, next(caches), tables)
            else:
                x = gdn_layer.prefill(
                    ttnn,
                    x,
                    layer,
                    self.gdn_shape,
                    next(recurrent),
                    weights.constants,
                    weights.zero,
                    mask=inputs.mask,
                    carry_rows=carry_rows,
                )
        hidden = ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)
        return hidden, self.gather(inputs, hidden)

    def gather(self, inputs: PrefillInputs, hidden: Any) -> Any:
        """The hidden states that `inputs.rows` names: [1, T, D] ROW_MAJOR -> [1, 32, D] TILE."""
        return gather_rows(self.target.ttnn, inputs.wanted_rows(self.target.ttnn), hidden)

    def decode(self, inputs: DecodeInputs, state: DecoderState) -> tuple[Any, Any]:
        """One decode step of all B rows: logits [1, B, vocab] float32 and greedy tokens [1, B] uint32, ROW_MAJOR."""
        ttnn, weights = self.target.ttnn, self.weights
        tables = DecodeTables(
            inputs.page_table,
            inputs.cache_positions,
            look_up(ttnn, inputs.positions, weights.cos),
            look_up(ttnn, inputs.positions, weights.sin),
        )
        recurrent, caches = iter(state.decode), iter(state.kv)
        x = embedding(ttnn, inputs.token_ids, weights.embed)
        for layer in weights.layers:
            if isinstance(layer, AttentionWeights):
                x = attention_layer.decode(ttnn, x, layer, self.attention_shape, next(caches), tables)
            else:
                x = gdn_layer.decode(ttnn, x, layer, self.gdn_shape, next(recurrent), weights.inverse_root)
        return self.head(x)

    def head(self, rows: Any) -> tuple[Any, Any]:
        """rows [1, N, D] bfloat16 TILE -> logits [1, N, vocab] float32 and greedy tokens [1, N] uint32, ROW_MAJOR."""
        ttnn, weights = self.target.ttnn, self.weights
        logits = lm_head(ttnn, rows, weights.final_norm, weights.lm_head, eps=self.config.rms_norm_eps)
        return logits, argmax(ttnn, logits)

    def store_prefilled(self, inputs: StoreInputs, state: DecoderState) -> None:
        """Hand the prefilled sequence's GDN states over to its decode row."""
        ttnn, rows = self.target.ttnn, inputs.eye.shape[3]
        row = embedding(ttnn, ttnn.typecast(inputs.slot, ttnn.uint32), inputs.eye)
        row_mask = ttnn.reshape(row, (1, 1, rows, 1))
        for prefilled, decoding in zip(state.prefill, state.decode, strict=True):
            gdn_layer.store(ttnn, prefilled, decoding, inputs.slot, row_mask)

    def reset_prefill(self, zeros: GdnPrefillState, state: DecoderState) -> None:
        """Make the prefill state that of an empty sequence by copying from `zeros`."""
        for prefilled in state.prefill:
            self.target.ttnn.copy(zeros.recurrent_state, prefilled.recurrent_state)
            self.target.ttnn.copy(zeros.conv_state, prefilled.conv_state)
