"""Wrong outputs made from right ones: what a gate must refuse before its word counts."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ttkern.evidence.compare import rms, tails


@dataclass(frozen=True)
class RightOutput:
    """What a right op would have returned, and what is known about it.

    value:  the reference, rounded to the output's dtype.
    stale:  the right output for other inputs, same dtype.
    slices: name -> axis, as given to `check`.
    dtype:  the declared dtype, or None where any of the kind will do.
    """

    value: Tensor
    stale: Tensor
    slices: Mapping[str, int] = field(default_factory=dict)
    dtype: torch.dtype | None = None


def planted(right: RightOutput) -> Iterator[tuple[str, Tensor | str]]:
    """Yield (name, wrong output), or (name, why it does not apply here). One at a time: outputs can be large."""
    value, stale, size = right.value, right.stale, rms(right.value)
    real = value.is_floating_point()
    comparable = stale.shape == value.shape

    yield "zeros", torch.zeros_like(value)
    yield "stale output", stale if comparable else "the seeds' shapes differ"
    for name, axis in right.slices.items():
        yield f"swapped {name}", _swapped(value, axis)
    if "token" in right.slices:
        yield "one token late", _late(value, right.slices["token"])
    for name, index in tails(value.shape).items():
        if name != "last row":
            yield f"lost {name}", _replaced(value, index, torch.zeros_like(value))
            yield f"stale {name}", _replaced(value, index, stale) if comparable else "the seeds' shapes differ"
    yield "padding leak", _leaked(value, size) if value.ndim >= 2 and real else "no rows of real numbers"
    yield "times 3", value * 3 if real else "integers"
    yield "times 3 plus 5 RMS", (value.double() * 3 + 5 * size).to(value.dtype) if real else "integers"
    yield "one NaN", _one(value, -1, math.nan) if real else "integers"
    yield "one Inf", _one(value, -1, math.inf) if real else "integers"
    yield "one element off", _off(value, size)
    yield "wrong shape", value.unsqueeze(0)
    yield "wrong dtype", value.to(_other_dtype(value.dtype, right.dtype))


def _swapped(value: Tensor, axis: int) -> Tensor | str:
    """The first index of the axis exchanged with the one least like it (twins would show nothing)."""
    n = value.shape[axis]
    if n < 2:
        return "only one"
    first = value.select(axis, 0).double()
    other = max(range(1, n), key=lambda i: (value.select(axis, i).double() - first).square().sum().item())
    order = list(range(n))
    order[0], order[other] = other, 0
    return value.index_select(axis, torch.tensor(order))


def _late(value: Tensor, axis: int) -> Tensor | str:
    """Every token gets its predecessor's output, the first one nothing."""
    if value.shape[axis] < 2:
        return "only one"
    late = value.roll(1, axis)
    late.select(axis, 0).zero_()
    return late


def _replaced(value: Tensor, index: tuple, source: Tensor) -> Tensor:
    wrong = value.clone()
    wrong[index] = source[index]
    return wrong


def _leaked(value: Tensor, size: float) -> Tensor:
    """The last row moved by a constant, as when the rows of padding below it took part in a sum."""
    row = value[tails(value.shape)["last row"]]
    wrong = value.clone()
    wrong[tails(value.shape)["last row"]] = (row.double() + max(size, rms(row))).to(value.dtype)
    return wrong


def _one(value: Tensor, position: int, to: float) -> Tensor:
    wrong = value.clone(memory_format=torch.contiguous_format)
    wrong.view(-1)[position] = to
    return wrong


def _off(value: Tensor, size: float) -> Tensor:
    """One element off by the RMS (integers: by 1): the last one no larger than the RMS, where that is not rounding."""
    flat = value.reshape(-1)
    if not value.is_floating_point():
        top = value.dtype == torch.bool or int(flat[-1]) == torch.iinfo(value.dtype).max
        return _one(value, -1, int(flat[-1]) - 1 if top else int(flat[-1]) + 1)
    position = int((flat.double().abs() <= size * (1 + 1e-9)).nonzero()[-1])
    return _one(value, position, flat[position].item() + (size or 1.0))


def _other_dtype(actual: torch.dtype, declared: torch.dtype | None) -> torch.dtype:
    """A dtype that must be refused: another one than declared, or of another kind where none was."""
    if declared is None:
        return torch.int32 if actual.is_floating_point else torch.float32
    return torch.float32 if actual != torch.float32 else torch.bfloat16
