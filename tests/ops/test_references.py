"""The ops' torch references against transformers' own modules: the definitions come from outside."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers.models.qwen3_5", reason="transformers here has no Qwen3.5: no outside reference")

from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

from ops.causal_conv.reference import convolve
from ops.chunk_gated_delta_rule.reference import gated_delta_rule
from ops.gated_attention.reference import attend
from ops.gated_rms_norm.reference import gated_rms_norm
from ops.partial_rotary.op import head_order, rotary_tables
from ops.partial_rotary.reference import rotate_checkpoint_order
from ops.rms_norm.reference import rms_norm
from ops.swiglu_mlp.reference import swiglu_mlp


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_rms_norm() -> None:
    module = modeling.Qwen3_5RMSNorm(48, eps=1e-6)
    module.weight.data = randn(48) * 0.2
    x = randn(1, 7, 48)
    close(rms_norm(x, (1 + module.weight.data).unsqueeze(0), eps=1e-6)[0], module(x).detach())


def test_gated_rms_norm() -> None:
    module = modeling.Qwen3_5RMSNormGated(32, eps=1e-6)
    module.weight.data = 1 + randn(32) * 0.2
    o, z = randn(7, 3, 32), randn(1, 7, 96, seed=1)
    want = module(o.reshape(-1, 32), z.reshape(-1, 32)).detach().reshape(1, 7, 96)
    projected = torch.cat([randn(1, 7, 64, seed=2), z], dim=-1)
    close(gated_rms_norm(o, projected, module.weight.data, value_heads=3, z_offset=64, eps=1e-6)[0], want)


def test_swiglu_mlp() -> None:
    gate, up, down = randn(16, 24), randn(16, 24, seed=1), randn(24, 16, seed=2)
    config = modeling.Qwen3_5TextConfig(hidden_size=16, intermediate_size=24)
    module = modeling.Qwen3_5MLP(config, 24)
    for linear, weight in ((module.gate_proj, gate), (module.up_proj, up), (module.down_proj, down)):
        linear.weight.data = weight.T.contiguous()
    x = randn(1, 5, 16, seed=3)
    torch.testing.assert_close(swiglu_mlp(x, gate, up, down)[0], module(x).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 2, 5, 40])
def test_causal_conv_with_and_without_history(tokens: int) -> None:
    x, taps = randn(tokens + 3, 12), randn(4, 12)
    want = modeling.causal_conv1d_fn(x.T.unsqueeze(0), taps.T.contiguous(), activation="silu")[0].T
    close(convolve(x[3:], x[:3], taps), want[3:])
    close(convolve(x[3:], torch.zeros(3, 12), taps)[:1], torch.nn.functional.silu(x[3:4] * taps[3]))


@pytest.mark.parametrize("tokens", [1, 31, 64, 100])
def test_gated_delta_rule(tokens: int) -> None:
    q, k, v = randn(tokens, 2, 32), randn(tokens, 2, 32, seed=1), randn(tokens, 6, 32, seed=2)
    g, beta, state = -randn(tokens, 6).abs(), torch.sigmoid(randn(tokens, 6, seed=3)), randn(6, 32, 32, seed=4)
    out, last = gated_delta_rule(q, k, v, g, beta, state)
    for rule in (modeling.torch_chunk_gated_delta_rule, modeling.torch_recurrent_gated_delta_rule):
        want, want_last = rule(
            *(t.unsqueeze(0) for t in (q, k, v)),
            g=g.unsqueeze(0),
            beta=beta.unsqueeze(0),
            initial_state=state.unsqueeze(0),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        close(out, want[0])
        close(last, want_last[0])


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 16), (32, 16), (64, 64), (256, 64)])
def test_partial_rotary_and_its_order_of_entries(head_dim: int, rotary_dim: int) -> None:
    x, positions = randn(1, 3, 9, head_dim), torch.arange(100, 109)
    angles = positions[:, None] * 10_000.0 ** -(torch.arange(0, rotary_dim, 2) / rotary_dim)
    cos, sin = angles.cos().repeat(1, 2)[None], angles.sin().repeat(1, 2)[None]
    want, _ = modeling.apply_rotary_pos_emb(x, x, cos, sin)
    close(rotate_checkpoint_order(x, positions, rotary_dim, 10_000.0), want)
    # The same numbers, turned as whole heads in the op's order of entries.
    order = head_order(head_dim, rotary_dim)
    cos_table, sin_table = (table[positions] for table in rotary_tables(200, head_dim, rotary_dim, 10_000.0))
    close(x[..., order] * cos_table + modeling.rotate_half(x[..., order]) * sin_table, want[..., order])


def test_attention() -> None:
    q, k, v = randn(6, 9, 32), randn(2, 14, 32, seed=1), randn(2, 14, 32, seed=2)
    grouped = torch.nn.functional.scaled_dot_product_attention(
        q[None],
        modeling.repeat_kv(k[None], 3),
        modeling.repeat_kv(v[None], 3),
        attn_mask=torch.ones(9, 14, dtype=torch.bool).tril(5),
    )
    close(attend(q, k, v, 5), grouped[0])
