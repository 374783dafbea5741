"""Elementwise ops, reductions, norms and matrix products: computed in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from ttkern.targets.emulated.dispatch import Out, fail, need_dtype, need_layout, op, overwrite, require
from ttkern.targets.emulated.ops_data import FLOATS, like
from ttkern.targets.emulated.tensor import Tensor
from ttkern.targets.emulated.types import TILE, DataType, Layout, MemoryConfig, UnaryOpType, UnaryWithParam

Activations = Sequence[UnaryOpType | UnaryWithParam] | None
Scalar = float | int


def _softplus(x: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    return functional.softplus(x, beta, threshold)


_UNARY: dict[UnaryOpType, Callable[..., torch.Tensor]] = {
    UnaryOpType.SIGMOID: torch.sigmoid,
    UnaryOpType.SILU: functional.silu,
    UnaryOpType.SOFTPLUS: _softplus,
}


def activate(values: torch.Tensor, activations: Activations) -> torch.Tensor:
    """Apply activations in order."""
    for activation in activations or ():
        if isinstance(activation, UnaryWithParam):
            values = _UNARY[activation.op_type](values, *activation.params)
        else:
            values = _UNARY[activation](values)
    return values


def _operand(tensor: Tensor) -> torch.Tensor:
    """Floats in float32, whole numbers as they are: float32 holds them to 2^24 only."""
    return tensor.f32 if tensor.dtype.is_float else tensor.logical


def _binary(name: str, combine: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
    def run(
        input_tensor_a: Tensor,
        input_tensor_b: Tensor | Scalar,
        *,
        dtype: DataType | None = None,
        memory_config: MemoryConfig | None = None,
        output_tensor: Tensor | None = None,
        activations: Activations = None,
        input_tensor_a_activations: Activations = None,
        input_tensor_b_activations: Activations = None,
    ) -> Any:
        a = input_tensor_a
        need_layout(name, "input_tensor_a", a, Layout.TILE)
        x = activate(_operand(a), input_tensor_a_activations)
        if isinstance(input_tensor_b, Tensor):
            need_layout(name, "input_tensor_b", input_tensor_b, Layout.TILE)
            b_dtype = input_tensor_b.dtype
            mixed = a.dtype is not b_dtype and not (a.dtype.is_float and b_dtype.is_float)
            require(name, not mixed, f"{a.dtype} and {b_dtype} do not go together")
            y: Any = activate(_operand(input_tensor_b), input_tensor_b_activations)
        else:
            y = input_tensor_b
            require(name, a.dtype.is_float or not isinstance(y, float), f"{a.dtype} and {y} do not go together")
        try:
            values = activate(combine(x, y), activations)
        except RuntimeError:
            fail(name, f"shapes {list(x.shape)} and {list(y.shape)} do not broadcast")
        if output_tensor is not None:
            return overwrite(output_tensor, values)
        return Out(values, dtype or a.dtype, Layout.TILE, memory_config)

    op(name)(run)


_binary("add", torch.add)
_binary("subtract", torch.sub)
_binary("multiply", torch.mul)


def _unary(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def run(input_tensor: Tensor, *, memory_config: MemoryConfig | None = None) -> Out:
        need_dtype(name, "input_tensor", input_tensor, *FLOATS)
        return like(input_tensor, function(input_tensor.f32), memory_config)

    op(name)(run)


_unary("sigmoid", torch.sigmoid)
_unary("silu", functional.silu)
_unary("exp", torch.exp)


@op("addcmul")
def addcmul(
    input_a: Tensor, input_b: Tensor, input_c: Tensor, *, value: float = 1.0, memory_config: MemoryConfig | None = None
) -> Out:
    """a + value * b * c."""
    for argument, tensor in (("input_a", input_a), ("input_b", input_b), ("input_c", input_c)):
        need_layout("addcmul", argument, tensor, Layout.TILE)
        need_dtype("addcmul", argument, tensor, input_a.dtype)
    return like(input_a, input_a.f32 + value * input_b.f32 * input_c.f32, memory_config)


@op("where")
def where(
    predicate: Tensor, true_value: Tensor, false_value: Tensor, *, memory_config: MemoryConfig | None = None
) -> Out:
    """true_value where the predicate is not 0, with broadcasting."""
    for argument, tensor in (("predicate", predicate), ("true_value", true_value), ("false_value", false_value)):
        need_layout("where", argument, tensor, Layout.TILE)
    need_dtype("where", "true_value", true_value, false_value.dtype)
    return like(
        false_value, torch.where(predicate.logical != 0, true_value.logical, false_value.logical), memory_config
    )


@op("sum")
def sum_(
    input_tensor: Tensor, dim: int | None = None, keepdim: bool = False, *, memory_config: MemoryConfig | None = None
) -> Out:
    """Sum over an axis."""
    need_layout("sum", "input_tensor", input_tensor, Layout.TILE)
    values = input_tensor.f32.sum() if dim is None else input_tensor.f32.sum(dim=dim, keepdim=keepdim)
    return like(input_tensor, values, memory_config)


@op("rms_norm")
def rms_norm(
    input_tensor: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual_input_tensor: Tensor | None = None,
    memory_config: MemoryConfig | None = None,
    program_config: Any = None,
    compute_kernel_config: Any = None,
) -> Out:
    """x / sqrt(mean(x^2) + epsilon) * weight + bias over the last axis."""
    need_layout("rms_norm", "input_tensor", input_tensor, Layout.TILE)
    need_dtype("rms_norm", "input_tensor", input_tensor, DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B)
    width = input_tensor.shape[-1]
    x = input_tensor.f32
    if residual_input_tensor is not None:
        x = x + residual_input_tensor.f32
    gamma = None if weight is None else _gamma(weight, "weight", width)
    y = functional.rms_norm(x, (width,), gamma, epsilon)
    if bias is not None:
        y = y + _gamma(bias, "bias", width)
    return like(input_tensor, y, memory_config)


def _gamma(tensor: Tensor, argument: str, width: int) -> torch.Tensor:
    need_dtype("rms_norm", argument, tensor, DataType.BFLOAT16, DataType.FLOAT32)
    if tensor.layout is Layout.TILE:
        fits = tensor.shape[-1] == width
    else:
        fits = tensor.shape[-1] == 32 and tensor.logical.numel() == width
    require("rms_norm", fits, f"{argument} of shape {list(tensor.shape)} does not cover a width of {width}")
    return tensor.f32.reshape(-1)[:width]


def _matmul(
    name: str,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    dtype: DataType | None,
    activation: Any,
    memory_config: MemoryConfig | None,
) -> Out:
    for argument, tensor in (("input_tensor_a", a), ("input_tensor_b", b)):
        need_layout(name, argument, tensor, Layout.TILE)
        need_dtype(name, argument, tensor, *FLOATS)
    require(
        name,
        a.shape[-1] == b.shape[-2],
        f"inner widths differ: {list(a.shape)} times {list(b.shape)}",
    )
    declared = dtype or a.dtype
    x, w = a.logical, b.logical
    if a.shape[-1] % TILE:
        # torch's bfloat16 product of views reads past the inner width, and 0 times poison is not 0.
        x, w = x.contiguous(), w.contiguous()
    plain = bias is None and activation is None and declared is DataType.BFLOAT16
    if plain and x.dtype is torch.bfloat16 and w.dtype is torch.bfloat16:
        y = x @ w  # float32 accumulation, one rounding: torch's bfloat16 product on a CPU
    else:
        y = x.float() @ w.float()
        if bias is not None:
            y = y + bias.f32
    if activation is not None:
        kinds = {"silu": UnaryOpType.SILU, "sigmoid": UnaryOpType.SIGMOID}
        y = activate(y.float(), [kinds.get(activation, activation)])
    return Out(y, declared, Layout.TILE, memory_config)


@op("linear")
def linear(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    bias: Tensor | None = None,
    memory_config: MemoryConfig | None = None,
    dtype: DataType | None = None,
    program_config: Any = None,
    activation: Any = None,
    compute_kernel_config: Any = None,
    core_grid: Any = None,
) -> Out:
    """a @ b + bias, with float32 accumulation."""
    return _matmul("linear", input_tensor_a, input_tensor_b, bias, dtype, activation, memory_config)


@op("matmul")
def matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    memory_config: MemoryConfig | None = None,
    dtype: DataType | None = None,
    program_config: Any = None,
    compute_kernel_config: Any = None,
) -> Out:
    """a @ b, with float32 accumulation."""
    return _matmul("matmul", input_tensor_a, input_tensor_b, None, dtype, None, memory_config)
