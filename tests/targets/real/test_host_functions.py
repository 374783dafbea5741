"""What happens on the host, bit for bit as real ttnn does it: rounding, block floats, padding, tilize and untilize."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttkern.targets import Target, open_target

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ttnn") is None, reason="ttnn is not installed here: no real library to ask"
)
KINDS = ("normal", "mixed", "tiny", "huge", "zeros", "bits", "ties")


@pytest.fixture(scope="module")
def real() -> Iterator[Target]:
    """Even a conversion on the host opens a cluster: the mock board."""
    target = open_target("mock")
    yield target
    target.close()


def values(kind: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Finite float32 of a kind: many exponents in a block, subnormals, ties of the rounding, random bits."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "mixed":
        x = x * np.exp2(rng.integers(-30, 30, shape)).astype(np.float32)
    elif kind == "tiny":
        x = x * np.float32(2.0**-130)
    elif kind == "huge":
        x = x * np.float32(2.0**124)
    elif kind == "zeros":
        x = np.where(rng.random(shape) < 0.7, np.copysign(np.float32(0), x), x)
    elif kind == "bits":
        x = rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
        x = np.where(np.isfinite(x), x, np.float32(1.5))
    elif kind == "ties":
        x = (rng.integers(-512, 512, shape) * np.float32(2.0**-9)).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(x))


def through(ttnn: Any, value: torch.Tensor, dtype: str, layout: str) -> tuple[torch.Tensor, list[int]]:
    """The value as a host tensor gives it back, and the shape that it takes in memory."""
    tensor = ttnn.from_torch(value, dtype=getattr(ttnn, dtype), layout=getattr(ttnn, layout))
    return ttnn.to_torch(tensor).float(), list(tensor.padded_shape)


shapes = st.one_of(
    st.tuples(st.integers(1, 100)),
    st.tuples(st.integers(1, 70), st.integers(1, 100)),
    st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 100)),
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 40), st.integers(1, 70)),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bfloat8_b", "bfloat4_b"])
@settings(max_examples=15)
@given(shape=shapes, seed=st.integers(0, 2**31))
def test_a_tile_tensor_holds_the_same_bits(
    real: Target, dtype: str, kind: str, shape: tuple[int, ...], seed: int
) -> None:
    value = values(kind, shape, seed)
    want, want_padded = through(real.ttnn, value, dtype, "TILE_LAYOUT")
    got, padded = through(open_target("emulated").ttnn, value, dtype, "TILE_LAYOUT")
    assert padded == want_padded
    assert torch.equal(got.view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint32"])
@settings(max_examples=15)
@given(shape=shapes, seed=st.integers(0, 2**31))
def test_tilize_and_untilize_move_every_value_to_its_place(
    real: Target, dtype: str, shape: tuple[int, ...], seed: int
) -> None:
    """Real ttnn's own to_layout there and back on the host, against the emulated tensor that went in as TILE."""
    whole = dtype in ("int32", "uint32")
    count = int(np.prod(shape))
    value = torch.arange(count, dtype=torch.int32).view(shape) if whole else values("normal", shape, seed)
    ttnn, emulated = real.ttnn, open_target("emulated").ttnn
    rows = ttnn.from_torch(value, dtype=getattr(ttnn, dtype), layout=ttnn.ROW_MAJOR_LAYOUT)
    tiles = ttnn.to_layout(rows, ttnn.TILE_LAYOUT)
    ours = emulated.from_torch(value, dtype=getattr(emulated, dtype), layout=emulated.TILE_LAYOUT)
    assert list(tiles.padded_shape) == list(ours.padded_shape)
    assert list(tiles.shape) == list(ours.shape)
    back = ttnn.to_torch(ttnn.to_layout(tiles, ttnn.ROW_MAJOR_LAYOUT))
    assert torch.equal(back.to(torch.float64), emulated.to_torch(ours).to(torch.float64))
