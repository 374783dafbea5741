"""From the checkpoint's tensors to the device's: transposed, fused and reordered as the ops read them.

One tensor is in flight at a time, so loading needs the device's copy and little more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ops.attention_layer.op import AttentionWeights
from ops.causal_conv.op import WIDTH
from ops.chunk_gated_delta_rule.op import Constants, make_constants
from ops.gdn_layer.op import GdnWeights, MlpWeights
from ops.partial_rotary.op import head_order, rotary_tables
from ttkern.model.config import ModelConfig
from ttkern.model.weights import expected_tensors

Track = Callable[[Iterable[Any], str], Iterable[Any]]


class TensorSource(Protocol):
    """Where the checkpoint's tensors come from, by their names without prefix."""

    def load(self, name: str) -> torch.Tensor:
        """The tensor as the checkpoint stores it."""


class NoData:
    """A model's tensors by shape only, for targets that check and count but do not compute."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = expected_tensors(config)

    def load(self, name: str) -> torch.Tensor:
        """A meta tensor of the checkpoint's shape."""
        return torch.empty(self._shapes[name], dtype=torch.bfloat16, device="meta")


@dataclass(frozen=True)
class DecoderWeights:
    """Everything of the model that lies on the device.

    embed [1, 1, vocab, D] bfloat16 ROW_MAJOR; final_norm [1, D] float32 TILE; lm_head [D, vocab] TILE;
    cos, sin [1, 1, positions, head_dim] bfloat16 ROW_MAJOR; inverse_root [1, K] float32 TILE (K^-0.5);
    zero [1] uint32 ROW_MAJOR
    """

    layers: tuple[GdnWeights | AttentionWeights, ...]
    embed: Any
    final_norm: Any
    lm_head: Any
    cos: Any
    sin: Any
    constants: Constants
    inverse_root: Any
    zero: Any


def load_decoder_weights(
    target: Any,
    config: ModelConfig,
    source: TensorSource,
    *,
    positions: int,
    weight_dtype: str = "bfloat16",
    track: Track = lambda items, _: items,
) -> DecoderWeights:
    """Upload the whole model.

    positions     how many positions the rotary tables cover; rounded up to whole tiles, for rows that idle
    weight_dtype  dtype of the projection matrices: bfloat16, bfloat8_b or bfloat4_b; what is small or sensitive
                  (embedding, norms, gates, convolution) is never narrowed
    track         wraps an iterable to show progress
    """
    up = _Uploader(target, config, source, weight_dtype)
    layers = tuple(up.layer(index) for index in track(range(config.num_hidden_layers), "loading layers"))
    head = "embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    cos, sin = rotary_tables(-(-positions // 32) * 32, config.head_dim, config.rotary_dim, config.rope_theta)
    k = config.linear_key_head_dim
    return DecoderWeights(
        layers=layers,
        embed=up.rows(source.load("embed_tokens.weight")),
        final_norm=up.norm(source.load("norm.weight")),
        lm_head=up.matrix(source.load(head)),
        cos=up.rows(cos),
        sin=up.rows(sin),
        constants=make_constants(target.ttnn, target.device),
        inverse_root=up.tile(torch.full((1, k), k**-0.5), target.ttnn.float32),
        zero=up.row_major(torch.zeros(1, dtype=torch.int32), target.ttnn.uint32),
    )


class _Uploader:
    def __init__(self, target: Any, config: ModelConfig, source: TensorSource, weight_dtype: str) -> None:
        self.ttnn, self.device = target.ttnn, target.device
        self.config, self.source = config, source
        self.weight_dtype = getattr(self.ttnn, weight_dtype)
        self.order = head_order(config.head_dim, config.rotary_dim)

    def tile(self, tensor: torch.Tensor, dtype: Any) -> Any:
        return self._upload(tensor, dtype, self.ttnn.TILE_LAYOUT)

    def row_major(self, tensor: torch.Tensor, dtype: Any) -> Any:
        return self._upload(tensor, dtype, self.ttnn.ROW_MAJOR_LAYOUT)

    def _upload(self, tensor: torch.Tensor, dtype: Any, layout: Any) -> Any:
        if tensor.is_meta:  # no data: a legality check of a model whose weights are not here
            return self.ttnn.empty(tuple(tensor.shape), dtype=dtype, layout=layout, device=self.device)
        return self.ttnn.from_torch(tensor, dtype=dtype, layout=layout, device=self.device)

    def rows(self, table: torch.Tensor) -> Any:
        return self.row_major(table.reshape(1, 1, *table.shape), self.ttnn.bfloat16)

    def matrix(self, weight: torch.Tensor, dtype: Any = None) -> Any:
        return self.tile(weight.T, self.weight_dtype if dtype is None else dtype)

    def norm(self, weight: torch.Tensor, centre: float = 1.0) -> Any:
        # A row-major float32 gamma at width 5120 asks for more L1 than a core has; a tiled one does not.
        return self.tile((weight.float() + centre).reshape(1, -1), self.ttnn.float32)

    def layer(self, index: int) -> GdnWeights | AttentionWeights:
        if self.config.layer_types[index] == "linear_attention":
            return self._gdn(f"layers.{index}.")
        return self._attention(f"layers.{index}.")

    def _mlp(self, prefix: str) -> MlpWeights:
        load = self.source.load
        return MlpWeights(
            norm=self.norm(load(f"{prefix}post_attention_layernorm.weight")),
            gate=self.matrix(load(f"{prefix}mlp.gate_proj.weight")),
            up=self.matrix(load(f"{prefix}mlp.up_proj.weight")),
            down=self.matrix(load(f"{prefix}mlp.down_proj.weight")),
        )

    def _gdn(self, prefix: str) -> GdnWeights:
        ttnn, load, mixer = self.ttnn, self.source.load, f"{prefix}linear_attn."
        conv = load(f"{mixer}conv1d.weight")[:, 0, :]  # [C, width], oldest first
        taps = torch.zeros(WIDTH, conv.shape[0], device=conv.device)
        taps[WIDTH - conv.shape[1] :] = conv.T
        out_norm = load(f"{mixer}norm.weight")
        return GdnWeights(
            norm=self.norm(load(f"{prefix}input_layernorm.weight")),
            qkvz=self.matrix(torch.cat([load(f"{mixer}in_proj_qkv.weight"), load(f"{mixer}in_proj_z.weight")], dim=0)),
            beta=self.matrix(load(f"{mixer}in_proj_b.weight"), ttnn.bfloat16),
            decay=self.matrix(load(f"{mixer}in_proj_a.weight"), ttnn.bfloat16),
            dt_bias=self.tile(load(f"{mixer}dt_bias").float().reshape(1, -1), ttnn.float32),
            neg_a=self.tile(-load(f"{mixer}A_log").float().exp().reshape(1, 1, -1), ttnn.float32),
            taps=tuple(self.tile(tap.reshape(1, 1, -1), ttnn.bfloat16) for tap in taps),
            early_taps=self.tile(taps[:-1].reshape(1, WIDTH - 1, 1, -1), ttnn.bfloat16),
            last_tap=self.tile(taps[-1].reshape(1, 1, 1, -1), ttnn.bfloat16),
            out_norm=self.tile(out_norm, ttnn.bfloat16),
            out_norm_rows=self.norm(out_norm, centre=0.0),
            out=self.matrix(load(f"{mixer}out_proj.weight")),
            mlp=self._mlp(prefix),
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        config, load, mixer = self.config, self.source.load, f"{prefix}self_attn."
        head_dim, hidden = config.head_dim, config.hidden_size
        # The checkpoint's q projection holds, head by head, the query and then the output gate.
        query, gate = load(f"{mixer}q_proj.weight").reshape(-1, 2, head_dim, hidden).unbind(dim=1)
        key = load(f"{mixer}k_proj.weight").reshape(-1, head_dim, hidden)
        qk = torch.cat([query, key], dim=0)[:, self.order].reshape(-1, hidden)
        return AttentionWeights(
            norm=self.norm(load(f"{prefix}input_layernorm.weight")),
            qkv=self.matrix(torch.cat([qk, load(f"{mixer}v_proj.weight")], dim=0)),
            gate=self.matrix(gate.reshape(-1, hidden)),
            q_norm=self.norm(load(f"{mixer}q_norm.weight")[self.order]),
            k_norm=self.norm(load(f"{mixer}k_norm.weight")[self.order]),
            out=self.matrix(load(f"{mixer}o_proj.weight")),
            mlp=self._mlp(prefix),
        )
