"""What an op is here: a reference, named cases, variants, and how its outputs are judged.

The same cases feed the tests, the benchmarks and the legality check, so a variant that is registered is
tested, timed and checked without another line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Fill = Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]


def normal(scale: float = 1.0, mean: float = 0.0) -> Fill:
    """Gaussian values; `scale` is the standard deviation."""
    return lambda generator, shape: torch.randn(shape, generator=generator) * scale + mean


def uniform(low: float, high: float) -> Fill:
    """Values spread evenly over [low, high)."""
    return lambda generator, shape: torch.rand(shape, generator=generator) * (high - low) + low


def integers(low: int, high: int) -> Fill:
    """Whole numbers in [low, high)."""
    return lambda generator, shape: torch.randint(low, high, shape, generator=generator)


def constant(value: torch.Tensor | float | int) -> Fill:
    """The same values for every seed (a table, a position, a mask)."""

    def fill(_: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.as_tensor(value).expand(shape).clone()

    return fill


@dataclass(frozen=True)
class TensorSpec:
    """One input: logical shape, ttnn dtype name, layout ("tile" or "row_major"), and what fills it."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    layout: str = "tile"
    fill: Fill = field(default_factory=normal)


@dataclass(frozen=True)
class Case:
    """Named shapes of an op: tensors by argument name, and the plain parameters that go with them."""

    name: str
    tensors: Mapping[str, TensorSpec]
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """One output: its name, the axes it is judged along ({"head": 1}), and the dtype it is declared in.

    rows: the axis along which a padded case's output is garbage after `valid_rows` of its reference, which is 0 there;
    None where all of it counts.
    """

    name: str
    slices: Mapping[str, int] = field(default_factory=dict)
    dtype: str = "bfloat16"
    rows: int | None = None


@dataclass(frozen=True)
class Op:
    """An op of the registry.

    reference   f(**tensors in float32 or integers, **params) -> tuple of torch tensors, one per output: the definition
    variants    name -> f(ttnn, **device tensors, **params) -> tuple of device tensors, one per output
    """

    name: str
    reference: Callable[..., tuple[torch.Tensor, ...]]
    variants: Mapping[str, Callable[..., tuple[Any, ...]]]
    cases: Sequence[Case]
    outputs: Sequence[Output]

    def __str__(self) -> str:
        return self.name

    def case(self, name: str) -> Case:
        """The case of that name; KeyError names those there are."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"{self.name} has no case {name!r}; it has {', '.join(c.name for c in self.cases)}")


def make_inputs(case: Case, seed: int) -> dict[str, torch.Tensor]:
    """Host tensors of a case (float32 or int64), the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return {name: spec.fill(generator, spec.shape) for name, spec in case.tensors.items()}


def to_device(ttnn: Any, device: Any, spec: TensorSpec, value: torch.Tensor | None) -> Any:
    """The device tensor of a spec; without data (`value` None) it is only allocated."""
    dtype = getattr(ttnn, spec.dtype)
    layout = ttnn.TILE_LAYOUT if spec.layout == "tile" else ttnn.ROW_MAJOR_LAYOUT
    if value is None:
        return ttnn.empty(spec.shape, dtype=dtype, layout=layout, device=device)
    if not value.is_floating_point():
        value = value.to(torch.int32)
    return ttnn.from_torch(value, dtype=dtype, layout=layout, device=device)


def run_variant(
    target: Any, op: Op, variant: str, case: Case, inputs: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """Upload the inputs, run one variant, and read its outputs back (float32 or integers)."""
    ttnn = target.ttnn
    tensors = {name: to_device(ttnn, target.device, spec, inputs[name]) for name, spec in case.tensors.items()}
    outputs = op.variants[variant](ttnn, **tensors, **case.params)
    return [t if isinstance(t, torch.Tensor) else ttnn.to_torch(t) for t in outputs]
