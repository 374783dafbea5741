"""Ops made for linear-attention layers: causal convolution, the gated delta rule, the gated norm."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from ttkern.targets.emulated.dispatch import Out, fail, need_dtype, need_layout, op, require
from ttkern.targets.emulated.tensor import Tensor
from ttkern.targets.emulated.types import (
    TILE,
    DataType,
    Layout,
    MemoryConfig,
    QkvCausalConv1dSiluProgramConfig,
)

CORES = 130
L1_BYTES = 1_461_120
CHUNK = 64  # tokens at once, here: the kernel's 32 is the same mathematics, and slower on a CPU
L2_EPS = 1e-6


@op("experimental.kda.qkv_causal_conv1d_silu")
def qkv_causal_conv1d_silu(
    input: Tensor,
    history: Tensor,
    tap0: Tensor,
    tap1: Tensor,
    tap2: Tensor,
    tap3: Tensor,
    q_width: int,
    k_width: int,
    v_width: int,
    *,
    actual_start: Tensor,
    predecessor_carry: Tensor,
    program_config: QkvCausalConv1dSiluProgramConfig,
    memory_config: MemoryConfig | None = None,
    compute_kernel_config: Any = None,
    input_column_offset: int = 0,
) -> list[Out]:
    """SiLU of the four-tap depthwise convolution, split into q, k and v."""
    name = "qkv_causal_conv1d_silu"
    channels, tokens = q_width + k_width + v_width, input.shape[1]
    need_layout(name, "input", input, Layout.TILE)
    need_layout(name, "history", history, Layout.ROW_MAJOR)
    for argument, tensor in (("input", input), ("history", history)):
        need_dtype(name, argument, tensor, DataType.BFLOAT16)
    require(name, history.shape == (1, 3, channels), f"history is {list(history.shape)}; wanted [1, 3, {channels}]")
    for what, n in (("T", tokens), ("q_width", q_width), ("k_width", k_width), ("v_width", v_width)):
        require(name, n > 0 and n % TILE == 0, f"{what} is {n}; it must be a positive multiple of {TILE}")
    for index, tap in enumerate((tap0, tap1, tap2, tap3)):
        need_layout(name, f"tap{index}", tap, Layout.TILE)
        need_dtype(name, f"tap{index}", tap, DataType.BFLOAT16)
        require(name, tap.logical.numel() == channels, f"tap{index} has {tap.logical.numel()} of {channels} channels")
    at_once = program_config.channel_chunk_size
    require(
        name,
        0 < at_once <= channels and channels % at_once == 0,
        f"channel_chunk_size = {at_once} must divide Q+K+V width {channels}",
    )
    # What the real op reports for 2,048, 5,120 and 10,240 channels lies on this line.
    needed = 166_144 + 694 * at_once
    require(
        name,
        needed <= L1_BYTES,
        f"channel_chunk_size = {at_once} needs {needed} bytes of L1 per core, only {L1_BYTES} are available",
    )
    x = input.f32[0, :, input_column_offset : input_column_offset + channels]
    rows = torch.cat([history.f32[0], x])
    taps = [tap.f32.reshape(-1) for tap in (tap0, tap1, tap2, tap3)]
    y = rows[:tokens] * taps[0]
    for index in range(1, 4):
        y.addcmul_(rows[index : index + tokens], taps[index])
    y = functional.silu(y, inplace=True).unsqueeze(0)
    return [
        Out(part, DataType.BFLOAT16, Layout.TILE, memory_config) for part in y.split([q_width, k_width, v_width], -1)
    ]


def l2_normalise(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(sum(x^2) + 1e-6)."""
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + L2_EPS)


@op("transformer.chunk_gated_delta_rule")
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    use_qk_l2norm: bool = False,
    output_head_major: bool = False,
    program_config: Any = None,
    memory_config: MemoryConfig | None = None,
    compute_kernel_config: Any = None,
    eye: Tensor | None = None,
    tril: Tensor | None = None,
    ones: Tensor | None = None,
    masks: Tensor | None = None,
) -> list[Out]:
    """The chunked gated delta rule, flat token-major inputs (rank 3)."""
    name = "chunk_gated_delta_rule"
    for argument, tensor in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)):
        need_layout(name, argument, tensor, Layout.TILE)
        require(name, len(tensor.shape) == 3, f"{argument} has rank {len(tensor.shape)}; flat inputs have rank 3")
    for argument, tensor in (("g", g), ("beta", beta)):
        need_dtype(name, argument, tensor, DataType.FLOAT32, DataType.BFLOAT16)
    require(name, not use_qk_l2norm, "use_qk_l2norm must be False: flat inputs are normalised in the kernel")
    require(name, chunk_size == 32, f"chunk_size is {chunk_size}; flat inputs take 32 only")
    batch, tokens, value_heads = beta.shape
    require(name, tokens % 32 == 0, f"T is {tokens}; it must be a multiple of 32")
    dim = v.shape[2] // value_heads
    require(name, q.shape[2] % dim == 0, f"q is {q.shape[2]} wide and V is {dim}: K must equal V")
    key_heads = q.shape[2] // dim
    require(name, value_heads % key_heads == 0, f"{value_heads} value heads do not divide over {key_heads} key heads")
    require(name, batch * value_heads <= CORES, f"{batch} x {value_heads} heads; at most {CORES}, one a core")
    constants = (eye, tril, ones, masks)
    if any(constant is None for constant in constants):
        device = q.device()
        assert device is not None
        if device.capturing is not None:
            fail(
                name, "writes are not supported during trace capture: pass eye, tril, ones and masks as device tensors"
            )
    else:
        _check_constants(name, constants)
    state = torch.zeros(batch, value_heads, dim, dim) if initial_state is None else initial_state.f32
    if initial_state is not None:
        need_layout(name, "initial_state", initial_state, Layout.TILE)
        wanted = (batch, value_heads, dim, dim)
        require(
            name, initial_state.shape == wanted, f"initial_state is {list(initial_state.shape)}; wanted {list(wanted)}"
        )
    scale = dim**-0.5 if scale is None else scale
    outs, states = [], []
    for row in range(batch):
        heads = lambda t, n: t.f32[row].view(tokens, n, dim).transpose(0, 1)  # noqa: E731, B023
        queries, keys = l2_normalise(heads(q, key_heads)) * scale, l2_normalise(heads(k, key_heads))
        group = value_heads // key_heads
        if group > 1:
            queries, keys = queries.repeat_interleave(group, 0), keys.repeat_interleave(group, 0)
        out, last = delta_rule(queries, keys, heads(v, value_heads), g.f32[row].T, beta.f32[row].T, state[row])
        outs.append(out)
        states.append(last)
    final = Out(torch.stack(states), DataType.FLOAT32, Layout.TILE, memory_config)
    if output_head_major:
        result = Out(torch.cat(outs), DataType.FLOAT32, Layout.TILE, memory_config)
    else:
        result = Out(torch.stack(outs).transpose(1, 2), DataType.FLOAT32, Layout.ROW_MAJOR)
    return [result, final] if output_final_state else [result]


def _check_constants(name: str, constants: tuple[Tensor | None, ...]) -> None:
    for argument, tensor, shape in zip(
        ("eye", "tril", "ones", "masks"), constants, ((1, 1, 32, 32),) * 3 + ((1, 1, 32, 96),), strict=True
    ):
        assert tensor is not None
        need_dtype(name, argument, tensor, DataType.FLOAT32)
        need_layout(name, argument, tensor, Layout.TILE)
        require(name, tensor.shape == shape, f"{argument} is {list(tensor.shape)}; wanted {list(shape)}")


def delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The delta rule in chunks: within one, a triangular system; between them, the state.

    q, k, v [H, T, K] float32, q and k normalised, q scaled; g (log decay), beta [H, T]; state [H, K, V]
    returns outputs [H, T, V] and the state after the last token
    Source: Yang et al. 2024, Gated Delta Networks, section 3.3 (the WY form with decay).
    """
    heads, tokens, width = q.shape
    size = CHUNK if tokens % CHUNK == 0 else 32
    chunks = tokens // size
    q, k, v = (t.reshape(heads, chunks, size, width) for t in (q, k, v))
    beta = beta.reshape(heads, chunks, size, 1)
    decay = g.reshape(heads, chunks, size).cumsum(-1)
    later = torch.full((size, size), -torch.inf).triu_(1)
    between = _decayed((decay.unsqueeze(-1) - decay.unsqueeze(-2)).add_(later))
    since_start = _decayed(decay).unsqueeze(-1)
    k_beta = k * beta
    transposed = k.transpose(-1, -2)
    system = (k_beta @ transposed).mul_(between)
    within = (q @ transposed).mul_(between)
    # One solve for both right-hand sides: what the chunk writes, and what it reads of the state before it.
    solved = torch.linalg.solve_triangular(
        system, torch.cat([v * beta, k_beta * since_start], dim=-1), upper=False, unitriangular=True
    )
    written, reading = solved[..., :width].contiguous(), solved[..., width:].contiguous()
    q_decayed = q * since_start
    to_end = _decayed(decay[..., -1:] - decay).unsqueeze(-1)
    k_to_end = (k * to_end).transpose(-1, -2)
    whole = _decayed(decay[..., -1])[..., None, None]
    out = torch.empty(heads, chunks, size, width)
    state = state.clone()
    for c in range(chunks):
        new = torch.baddbmm(written[:, c], reading[:, c], state, alpha=-1)
        out[:, c] = torch.baddbmm(torch.bmm(q_decayed[:, c], state), within[:, c], new)
        state = torch.baddbmm(state * whole[:, c], k_to_end[:, c], new)
    return out.reshape(heads, tokens, width), state


def _decayed(log_decay: torch.Tensor) -> torch.Tensor:
    """exp, but 0 below 1e-26: what is left of that is lost in any sum, and as subnormal products it slows a CPU 4x."""
    return torch.where(log_decay < -60.0, -torch.inf, log_decay).exp_()


@op("transformer.fused_recurrent_gated_delta_rule")
def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm: bool = False,
    memory_config: MemoryConfig | None = None,
    compute_kernel_config: Any = None,
) -> list[Out]:
    """The delta rule token by token; q and k come L2-normalised."""
    name = "fused_recurrent_gated_delta_rule"
    for argument, tensor in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)):
        need_layout(name, argument, tensor, Layout.TILE)
    require(name, not use_qk_l2norm, "use_qk_l2norm must be False: normalise q and k before")
    batch, tokens, value_heads, dim = v.shape
    key_heads = q.shape[2]
    require(name, value_heads % key_heads == 0, f"{value_heads} value heads do not divide over {key_heads} key heads")
    require(name, batch * value_heads <= CORES, f"{batch} x {value_heads} heads; at most {CORES}, one a core")
    group = value_heads // key_heads
    queries, keys = (t.f32.repeat_interleave(group, 2) for t in (q, k))
    queries = queries * (q.shape[3] ** -0.5 if scale is None else scale)
    values, decay, write = v.f32, g.f32.exp(), beta.f32
    state = torch.zeros(batch, value_heads, q.shape[3], dim) if initial_state is None else initial_state.f32
    out = torch.empty(batch, tokens, value_heads, dim)
    for t in range(tokens):
        state = state * decay[:, t, :, None, None]
        key = keys[:, t].unsqueeze(-1)
        seen = (state * key).sum(dim=-2)
        state = state + key * ((values[:, t] - seen) * write[:, t].unsqueeze(-1)).unsqueeze(-2)
        out[:, t] = (state * queries[:, t].unsqueeze(-1)).sum(dim=-2)
    result = [Out(out, DataType.FLOAT32, Layout.TILE, memory_config)]
    return [*result, Out(state, DataType.FLOAT32, Layout.TILE, memory_config)] if output_final_state else result


@op("experimental.kda.sigmoid_gated_rms_norm")
def sigmoid_gated_rms_norm(
    input: Tensor,
    gate: Tensor,
    weight: Tensor,
    num_heads: int,
    *,
    epsilon: float = 1e-5,
    memory_config: MemoryConfig | None = None,
    compute_kernel_config: Any = None,
    output_dtype: DataType = DataType.FLOAT32,
    gate_column_offset: int = 0,
) -> Out:
    """Per-head norm, sigmoid gate, and head-major rows brought to token-major."""
    name = "sigmoid_gated_rms_norm"
    for argument, tensor in (("input", input), ("gate", gate), ("weight", weight)):
        need_layout(name, argument, tensor, Layout.TILE)
    need_dtype(name, "gate", gate, DataType.BFLOAT16)
    need_dtype(name, "weight", weight, DataType.BFLOAT16)
    lead, tokens, dim = input.shape
    require(name, tokens % TILE == 0, f"sequence is {tokens}; it must be a positive multiple of {TILE}")
    require(name, dim % TILE == 0, f"V is {dim}; it must be a multiple of {TILE}")
    require(name, lead % num_heads == 0, f"{lead} rows do not divide over {num_heads} heads")
    require(
        name, gate_column_offset % TILE == 0, f"gate_column_offset is {gate_column_offset}; it must be tile aligned"
    )
    batch, width = lead // num_heads, num_heads * dim
    require(name, gate.shape[2] >= gate_column_offset + width, f"gate is {gate.shape[2]} wide; too narrow")
    normed = functional.rms_norm(input.f32, (dim,), weight.f32.reshape(-1), epsilon)
    by_token = normed.view(batch, num_heads, tokens, dim).transpose(1, 2).reshape(batch, tokens, width)
    gates = gate.f32[..., gate_column_offset : gate_column_offset + width]
    return Out(by_token * torch.sigmoid(gates), output_dtype, Layout.TILE, memory_config)
