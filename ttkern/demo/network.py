"""The Qwen3.5 text decoder in torch for training: the same weights and numbers as transformers', batched and quick.

A batch can be damaged where the maker wants the model to notice: a GDN layer's recurrent state lost or old at a border,
or the keys and values of some positions taken from another sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ttkern.model.checkpoint import random_tensor
from ttkern.model.config import LINEAR, ModelConfig
from ttkern.model.weights import EMBEDDING, LM_HEAD, expected_tensors

CHUNK = 64


@dataclass(frozen=True)
class Damage:
    """What is wrong with each sequence of a batch, where chunks of 64 tokens begin.

    borders  [B, T / 64] bool: before these chunks states are lost or old
    lost     [layers, B] bool: the layer's recurrent state is zero there
    since    [B] the chunk before which the state was taken that is there instead, in all GDN layers; T / 64: none
    stale    [B, T] bool: positions whose keys and values are another sequence's
    blind    [B] bool: attention sees nothing across a border
    """

    borders: Tensor
    lost: Tensor
    since: Tensor
    stale: Tensor
    blind: Tensor


def initial_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Seeded float32 parameters under a checkpoint's names: small, and with decays that remember."""
    weights = {}
    for name, shape in expected_tensors(config).items():
        value = random_tensor(config, name, shape, seed)
        if name in (EMBEDDING, LM_HEAD):
            value = value / value.std() * (0.5 if name == EMBEDDING else 0.05)
        elif name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            value = value * 0.5
        elif value.dim() == 1 and not name.endswith(("A_log", "dt_bias")):
            value = torch.ones(shape) if name.endswith("linear_attn.norm.weight") else torch.zeros(shape)
        weights[name] = value.requires_grad_()
    return weights


def forward(config: ModelConfig, weights: dict[str, Tensor], ids: Tensor, damage: Damage | None = None) -> Tensor:
    """ids [B, T], T a multiple of 64 -> hidden states after the final norm [B, T, D]."""
    x = F.embedding(ids, weights[EMBEDDING])
    for index, kind in enumerate(config.layer_types):
        w = {name.split(".", 2)[2]: t for name, t in weights.items() if name.startswith(f"layers.{index}.")}
        normed = _norm(x, w["input_layernorm.weight"], config)
        if kind == LINEAR:
            x = x + _gdn(config, w, normed, damage, index)
        else:
            x = x + _attention(config, w, normed, damage)
        normed = _norm(x, w["post_attention_layernorm.weight"], config)
        gate = F.silu(F.linear(normed, w["mlp.gate_proj.weight"]))
        x = x + F.linear(gate * F.linear(normed, w["mlp.up_proj.weight"]), w["mlp.down_proj.weight"])
    return _norm(x, weights["norm.weight"], config)


def logits(config: ModelConfig, weights: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """[..., D] -> [..., vocab]."""
    return F.linear(hidden, weights[EMBEDDING if config.tie_word_embeddings else LM_HEAD])


def _norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), 1 + weight, config.rms_norm_eps)


def _gdn(config: ModelConfig, w: dict[str, Tensor], x: Tensor, damage: Damage | None, index: int) -> Tensor:
    batch, tokens, _ = x.shape
    heads, kernel = config.linear_num_value_heads, config.linear_conv_kernel_dim
    mixed = F.linear(x, w["linear_attn.in_proj_qkv.weight"])
    padded = F.pad(mixed, (0, 0, kernel - 1, 0))
    taps = w["linear_attn.conv1d.weight"][:, 0]
    mixed = F.silu(torch.stack([padded[:, n : n + tokens] * taps[:, n] for n in range(kernel)]).sum(0))
    q, k, v = mixed.split([config.key_dim, config.key_dim, config.value_dim], -1)

    def by_head(t: Tensor, count: int) -> Tensor:
        """[B, heads, chunks, 64, dim]."""
        t = t.view(batch, tokens // CHUNK, CHUNK, count, -1).permute(0, 3, 1, 2, 4)
        return t.repeat_interleave(heads // count, 1)

    q, k = (F.normalize(by_head(t, config.linear_num_key_heads), dim=-1, eps=1e-6) for t in (q, k))
    q = q * config.linear_key_head_dim**-0.5
    v = by_head(v, heads)
    beta = by_head(torch.sigmoid(F.linear(x, w["linear_attn.in_proj_b.weight"])), heads)
    step = F.softplus(F.linear(x, w["linear_attn.in_proj_a.weight"]) + w["linear_attn.dt_bias"])
    decay = by_head(-torch.exp(w["linear_attn.A_log"]) * step, heads)
    out = _delta_rule(q, k, v, beta, decay[..., 0], damage, index)
    out = out.permute(0, 2, 3, 1, 4).reshape(batch, tokens, heads, -1)
    z = F.linear(x, w["linear_attn.in_proj_z.weight"]).view_as(out)
    out = F.rms_norm(out, (out.shape[-1],), w["linear_attn.norm.weight"], config.rms_norm_eps) * F.silu(z)
    return F.linear(out.flatten(-2), w["linear_attn.out_proj.weight"])


def _delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, damage: Damage | None, index: int
) -> Tensor:
    """The gated delta rule by chunks (WY form): q, k, v [B, H, N, 64, dim], beta [..., 1], decay [B, H, N, 64] log."""
    total = decay.cumsum(-1)
    low = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~low, -torch.inf).exp()
    inner = (k * beta) @ k.transpose(-1, -2) * between
    grown = total.exp()[..., None]
    rhs = torch.cat([v * beta, k * beta * grown], -1)
    solved = torch.linalg.solve_triangular(inner.tril(-1), rhs, upper=False, unitriangular=True)
    u, w = solved.split([v.shape[-1], k.shape[-1]], -1)
    within = q @ k.transpose(-1, -2) * between
    carried = q * grown
    kept = k * (total[..., -1:] - total).exp()[..., None]
    faded = total[..., -1, None, None].exp()
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    states, out = [], []
    for n in range(q.shape[2]):
        if damage is not None:
            states.append(state)
            here = damage.borders[:, n]
            for since in damage.since[here & (damage.since < n)].unique().tolist():
                old = here & (damage.since == since)
                state = torch.where(old[:, None, None, None], states[since], state)
            lost = here & damage.lost[index]
            state = state.masked_fill(lost[:, None, None, None], 0)
        fresh = u[:, :, n] - w[:, :, n] @ state
        out.append(carried[:, :, n] @ state + within[:, :, n] @ fresh)
        state = state * faded[:, :, n] + kept[:, :, n].transpose(-1, -2) @ fresh
    return torch.stack(out, 2)


def _attention(config: ModelConfig, w: dict[str, Tensor], x: Tensor, damage: Damage | None) -> Tensor:
    batch, tokens, _ = x.shape
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q, gate = F.linear(x, w["self_attn.q_proj.weight"]).view(batch, tokens, heads, 2 * dim).chunk(2, -1)
    k = F.linear(x, w["self_attn.k_proj.weight"]).view(batch, tokens, kv_heads, dim)
    v = F.linear(x, w["self_attn.v_proj.weight"]).view(batch, tokens, kv_heads, dim)
    q, k = _norm(q, w["self_attn.q_norm.weight"], config), _norm(k, w["self_attn.k_norm.weight"], config)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    q, k = _rotate(config, q), _rotate(config, k)
    if damage is not None:
        stale = damage.stale[:, None, :, None]
        k, v = torch.where(stale, k.roll(1, 0), k), torch.where(stale, v.roll(1, 0), v)
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    if damage is not None and damage.blind.any():
        part = damage.borders.cumsum(1).repeat_interleave(CHUNK, 1)
        hidden = damage.blind[:, None, None] & (part[:, :, None] != part[:, None, :])
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril() & ~hidden
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None])
    else:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out = out.transpose(1, 2) * torch.sigmoid(gate)
    return F.linear(out.flatten(-2), w["self_attn.o_proj.weight"])


def _rotate(config: ModelConfig, x: Tensor) -> Tensor:
    half = config.rotary_dim // 2
    speed = config.rope_theta ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[2])[:, None] * speed
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = turned.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
