"""The layers as one writes them first: what host-time ratios are taken against. Nothing here is to be tuned.

Shapes are the 27B's on one chip. The GDN layer is 45 ttnn calls. The attention layer is written the same way: one
projection each, q and k normed, the rotary part cut out, rotated and put back, a paged cache, the gate as a sigmoid.
"""

from __future__ import annotations

from typing import Any

HIDDEN, KEY, VALUE, HEADS, INTER = 5120, 2048, 6144, 48, 17408
CONV = 2 * KEY + VALUE
Q_HEADS, KV_HEADS, HEAD_DIM, ROTARY = 24, 4, 256, 64
BLOCK, BLOCKS, TABLE = 64, 64, 64


class Naive:
    """Weights and states of one layer of each kind, without data."""

    def __init__(self, ttnn: Any, device: Any, tokens: int) -> None:
        self.ttnn, self.device, self.tokens = ttnn, device, tokens
        weight, make, tile, rows = self.weight, self.make, ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT
        self.w_qkv, self.w_z = weight(HIDDEN, CONV), weight(HIDDEN, VALUE)
        self.w_ba, self.w_out = weight(HIDDEN, 2 * HEADS, ttnn.bfloat16), weight(VALUE, HIDDEN)
        self.w_gate, self.w_up, self.w_down = weight(HIDDEN, INTER), weight(HIDDEN, INTER), weight(INTER, HIDDEN)
        self.norm, self.head_norm = (make(1, 1, n // 32, 32, layout=rows) for n in (HIDDEN, 128))
        self.taps = [make(1, 1, 1, CONV) for _ in range(4)]
        self.a_exp, self.dt_bias = (make(1, 1, 1, HEADS, dtype=ttnn.float32) for _ in range(2))
        self.state, self.carry = make(1, HEADS, 128, 128, dtype=ttnn.float32), make(1, 1, 32, CONV)
        self.eye, self.tril, self.ones = (make(1, 1, 32, 32, dtype=ttnn.float32) for _ in range(3))
        self.masks = make(1, 1, 32, 96, dtype=ttnn.float32)

        self.w_q, self.w_qgate = weight(HIDDEN, Q_HEADS * HEAD_DIM), weight(HIDDEN, Q_HEADS * HEAD_DIM)
        self.w_k, self.w_v = weight(HIDDEN, KV_HEADS * HEAD_DIM), weight(HIDDEN, KV_HEADS * HEAD_DIM)
        self.w_o = weight(Q_HEADS * HEAD_DIM, HIDDEN)
        self.q_norm = make(1, 1, HEAD_DIM // 32, 32, layout=rows)
        self.cos, self.sin = make(1, 1, tokens, ROTARY), make(1, 1, tokens, ROTARY)
        self.k_cache, self.v_cache = (make(BLOCKS, KV_HEADS, BLOCK, HEAD_DIM) for _ in range(2))
        self.table = make(1, TABLE, dtype=ttnn.int32, layout=rows)
        self.fill = make(1, tokens // BLOCK, dtype=ttnn.int32, layout=rows)
        self.sdpa = ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=device.compute_with_storage_grid_size(), q_chunk_size=128, k_chunk_size=128
        )
        self.x = make(1, 1, tokens, HIDDEN, layout=tile)

    def make(self, *shape: int, dtype: Any = None, layout: Any = None) -> Any:
        ttnn = self.ttnn
        return ttnn.empty(
            shape,
            dtype=dtype or ttnn.bfloat16,
            layout=ttnn.TILE_LAYOUT if layout is None else layout,
            device=self.device,
        )

    def weight(self, rows: int, columns: int, dtype: Any = None) -> Any:
        return self.make(1, 1, rows, columns, dtype=dtype or self.ttnn.bfloat8_b)

    def gdn(self, x: Any) -> Any:
        ttnn, tokens = self.ttnn, self.tokens
        h = ttnn.rms_norm(x, epsilon=1e-6, weight=self.norm)
        qkv, z = ttnn.linear(h, self.w_qkv), ttnn.linear(h, self.w_z)
        ba = ttnn.linear(h, self.w_ba, dtype=ttnn.float32)
        extended = ttnn.concat([self.carry, qkv], dim=2)
        window = [ttnn.slice(extended, [0, 0, 29 + i, 0], [1, 1, 29 + i + tokens, CONV]) for i in range(4)]
        y = ttnn.mul(window[0], self.taps[0])
        for i in range(1, 4):
            y = ttnn.addcmul(y, window[i], self.taps[i])
        y = ttnn.silu(y)
        ttnn.copy(ttnn.slice(extended, [0, 0, tokens, 0], [1, 1, tokens + 32, CONV]), self.carry)
        columns = ((0, KEY), (KEY, 2 * KEY), (2 * KEY, CONV))
        q, k, v = (ttnn.slice(y, [0, 0, 0, lo], [1, 1, tokens, hi]) for lo, hi in columns)
        b, a = (ttnn.slice(ba, [0, 0, 0, lo], [1, 1, tokens, lo + HEADS]) for lo in (0, HEADS))
        beta, g = ttnn.sigmoid(b), ttnn.mul(ttnn.softplus(ttnn.add(a, self.dt_bias)), self.a_exp)
        flat = [ttnn.reshape(t, (1, tokens, t.shape[-1])) for t in (q, k, v, g, beta)]
        o, new_state = ttnn.transformer.chunk_gated_delta_rule(
            *flat,
            initial_state=self.state,
            output_final_state=True,
            chunk_size=32,
            output_head_major=True,
            eye=self.eye,
            tril=self.tril,
            ones=self.ones,
            masks=self.masks,
        )
        ttnn.copy(new_state, self.state)
        o = ttnn.rms_norm(o, epsilon=1e-6, weight=self.head_norm)
        o = ttnn.typecast(ttnn.reshape(ttnn.permute(o, (1, 0, 2)), (1, 1, tokens, VALUE)), ttnn.bfloat16)
        o = ttnn.mul(o, z, input_tensor_b_activations=[ttnn.UnaryOpType.SILU])
        x = ttnn.add(x, ttnn.linear(o, self.w_out))
        return self.feed_forward(x)

    def attention(self, x: Any) -> Any:
        ttnn, tokens = self.ttnn, self.tokens
        h = ttnn.rms_norm(x, epsilon=1e-6, weight=self.norm)
        q, k, v = ttnn.linear(h, self.w_q), ttnn.linear(h, self.w_k), ttnn.linear(h, self.w_v)
        gate = ttnn.linear(h, self.w_qgate)
        q = ttnn.permute(ttnn.reshape(q, (1, tokens, Q_HEADS, HEAD_DIM)), (0, 2, 1, 3))
        k, v = (ttnn.permute(ttnn.reshape(t, (1, tokens, KV_HEADS, HEAD_DIM)), (0, 2, 1, 3)) for t in (k, v))
        q, k = (ttnn.rms_norm(t, epsilon=1e-6, weight=self.q_norm) for t in (q, k))
        q, k = self.rotate(q), self.rotate(k)
        ttnn.experimental.paged_fill_cache(self.k_cache, k, self.fill, batch_idx=0)
        ttnn.experimental.paged_fill_cache(self.v_cache, v, self.fill, batch_idx=0)
        o = ttnn.transformer.chunked_scaled_dot_product_attention(
            q, self.k_cache, self.v_cache, self.table, chunk_start_idx=0, program_config=self.sdpa
        )
        o = ttnn.reshape(ttnn.permute(o, (0, 2, 1, 3)), (1, 1, tokens, Q_HEADS * HEAD_DIM))
        x = ttnn.add(x, ttnn.linear(ttnn.mul(o, ttnn.sigmoid(gate)), self.w_o))
        return self.feed_forward(x)

    def rotate(self, t: Any) -> Any:
        ttnn, tokens, heads = self.ttnn, self.tokens, t.shape[1]
        turned = ttnn.slice(t, [0, 0, 0, 0], [1, heads, tokens, ROTARY])
        rest = ttnn.slice(t, [0, 0, 0, ROTARY], [1, heads, tokens, HEAD_DIM])
        return ttnn.concat([ttnn.experimental.rotary_embedding_hf(turned, self.cos, self.sin), rest], dim=3)

    def feed_forward(self, x: Any) -> Any:
        ttnn = self.ttnn
        h = ttnn.rms_norm(x, epsilon=1e-6, weight=self.norm)
        m = ttnn.mul(
            ttnn.linear(h, self.w_gate),
            ttnn.linear(h, self.w_up),
            input_tensor_a_activations=[ttnn.UnaryOpType.SILU],
        )
        return ttnn.add(x, ttnn.linear(m, self.w_down))
