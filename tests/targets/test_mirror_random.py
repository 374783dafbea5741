"""Random calls on odd shapes, dtypes and layouts: the emulated device may refuse more than real ttnn, never less.

The mirror compares; here is only what is called. Found and mended this way: mixed dtypes, slices of block floats that
start inside a tile, rank-1 transposes, scalars that are no whole numbers with integers.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ttkern.targets import Target, open_target
from ttkern.targets.mirror import MirrorError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ttnn") is None, reason="ttnn is not installed here: no real library to ask"
)
SIZES = (1, 2, 3, 16, 31, 32, 33, 64, 65, 96)
DTYPES = (*["bfloat16"] * 5, *["float32"] * 3, "bfloat8_b", "int32", "uint32")
LAYOUTS = (*["TILE_LAYOUT"] * 4, "ROW_MAJOR_LAYOUT")
CALLS = 250


class Calls:
    """One random call after the other."""

    def __init__(self, target: Target, seed: int) -> None:
        self.ttnn, self.device, self.rng = target.ttnn, target.device, random.Random(seed)

    def tensor(self, shape: tuple[int, ...] | None = None, dtype: str = "", layout: str = "") -> Any:
        rng, ttnn = self.rng, self.ttnn
        shape = shape or tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 2, 3, 3, 4))))
        dtype, layout = dtype or rng.choice(DTYPES), layout or rng.choice(LAYOUTS)
        return ttnn.empty(shape, dtype=getattr(ttnn, dtype), layout=getattr(ttnn, layout), device=self.device)

    def like(self, x: Any) -> Any:
        rng, shape = self.rng, list(x.shape)
        chance = rng.random()
        if chance < 0.3:
            shape[rng.randrange(len(shape))] = 1
        elif chance < 0.45:
            shape[-1] = rng.choice(SIZES)
        dtype = rng.choice([x.dtype.name.lower()] * 8 + list(DTYPES))
        return self.tensor(tuple(shape), dtype, rng.choice([f"{x.layout.name}_LAYOUT"] * 5 + list(LAYOUTS)))

    def place(self) -> dict[str, Any]:
        ttnn = self.ttnn
        return self.rng.choice(
            [{}] * 3 + [{"memory_config": c} for c in (ttnn.DRAM_MEMORY_CONFIG, ttnn.L1_MEMORY_CONFIG)]
        )

    def all(self) -> Iterator[Any]:
        rng, ttnn, like, tensor = self.rng, self.ttnn, self.like, self.tensor

        def matmul(x: Any) -> Any:
            rows = x.shape[-1] if rng.random() < 0.9 else rng.choice(SIZES)
            weight = tensor((rows, rng.choice(SIZES)), rng.choice(("bfloat16", "float32", "bfloat8_b")))
            return getattr(ttnn, rng.choice(("linear", "matmul")))(x, weight, **self.place())

        def reshape(x: Any) -> Any:
            count = math.prod(x.shape)
            rows = rng.choice([n for n in (1, 2, 3, 16, 32, 33, 64) if count % n == 0])
            return ttnn.reshape(x, rng.choice([(rows, count // rows), (1, count), (count,), (1, *x.shape), (rows, -1)]))

        def cut(x: Any) -> Any:
            begin = [rng.choice((0, 0, rng.randrange(n))) for n in x.shape]
            end = [rng.choice((n, rng.randint(b + 1, n))) for b, n in zip(begin, x.shape, strict=True)]
            return ttnn.slice(x, begin, end, **self.place())

        def embed(_: Any) -> Any:
            ids = tensor((rng.choice((1, 2)), rng.choice(SIZES)), rng.choice(("uint32", "int32")), rng.choice(LAYOUTS))
            return ttnn.embedding(ids, tensor((rng.choice(SIZES), rng.choice(SIZES)), "", "ROW_MAJOR_LAYOUT"))

        binary, unary = ("add", "multiply", "subtract"), ("silu", "sigmoid", "exp")
        choices = (
            lambda x: getattr(ttnn, rng.choice(binary))(x, rng.choice((like(x), 2.0)), **self.place()),
            lambda x: getattr(ttnn, rng.choice(unary))(x, **self.place()),
            lambda x: ttnn.typecast(x, getattr(ttnn, rng.choice(DTYPES))),
            lambda x: ttnn.rms_norm(x, epsilon=1e-6, weight=tensor((1, x.shape[-1]))),
            lambda x: ttnn.sum(x, dim=rng.choice((-1, -2, 0)), keepdim=rng.choice((True, False))),
            lambda x: ttnn.concat([x, like(x)], dim=rng.randrange(len(x.shape)), **self.place()),
            lambda x: ttnn.permute(x, rng.sample(range(len(x.shape)), len(x.shape))),
            lambda x: ttnn.transpose(x, *(rng.randrange(-len(x.shape), len(x.shape)) for _ in range(2))),
            lambda x: ttnn.argmax(x, dim=rng.choice((-1, -1, None)), keepdim=rng.choice((True, False))),
            lambda x: ttnn.to_layout(x, getattr(ttnn, rng.choice(LAYOUTS))),
            lambda x: ttnn.where(like(x), x, like(x)),
            lambda x: ttnn.addcmul(x, like(x), like(x)),
            lambda x: ttnn.copy(x, like(x)),
            lambda x: ttnn.clone(x, **self.place()),
            lambda x: ttnn.to_memory_config(x, rng.choice((ttnn.DRAM_MEMORY_CONFIG, ttnn.L1_MEMORY_CONFIG))),
            *(matmul, reshape, cut, embed),
        )
        while True:
            yield rng.choice(choices)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_the_emulated_device_accepts_real_ttnn_does(seed: int) -> None:
    target = open_target("mirror")
    calls, counted = Calls(target, seed), Counter()
    for call, _ in zip(calls.all(), range(CALLS), strict=False):
        try:
            call(calls.tensor())
            counted["accepted by both"] += 1
        except MirrorError:
            raise
        except RuntimeError:
            counted["refused by the emulated device"] += 1
    target.close()
    assert min(counted.values()) > CALLS / 5, counted
