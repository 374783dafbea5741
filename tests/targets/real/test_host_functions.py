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
KINDS = ("normal", "mixed", "tiny", "huge", "subnormal", "zeros", "infinities", "bits", "ties")
BLOCK_FLOATS = {"bfloat8_b": 7, "bfloat4_b": 3}  # bits of a magnitude


@pytest.fixture(scope="module")
def real() -> Iterator[Target]:
    """Even a conversion on the host opens a cluster: the mock board."""
    target = open_target("mock")
    yield target
    target.close()


def values(kind: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """float32 of a kind without NaN: many exponents in a block, subnormals, ties of the rounding, random bits."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "mixed":
        x = x * np.exp2(rng.integers(-30, 30, shape)).astype(np.float32)
    elif kind == "tiny":  # on either side of the smallest normal number, 2**-126
        x = x * np.exp2(rng.integers(-129, -115, shape)).astype(np.float32)
    elif kind == "huge":  # up to the largest exponent, where rounding up would overflow
        x = (rng.uniform(1, 2, shape) * np.exp2(rng.integers(118, 128, shape)) * np.sign(x)).astype(np.float32)
    elif kind == "subnormal":
        bits = rng.integers(0, 2**23, shape, dtype=np.uint32) | np.signbit(x).astype(np.uint32) << np.uint32(31)
        x = np.where(rng.random(shape) < 0.5, bits.view(np.float32), np.float32(0))
    elif kind == "zeros":
        x = np.where(rng.random(shape) < 0.7, np.copysign(np.float32(0), x), x)
    elif kind == "infinities":
        x = np.where(rng.random(shape) < 0.02, np.copysign(np.float32(np.inf), x), x)
    elif kind == "bits":
        x = rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
        x = np.where(np.isnan(x), np.float32(1.5), x)
    elif kind == "ties":  # halves of every dtype's last place, among neighbours of other exponents
        x = (rng.integers(-512, 512, shape) * np.float32(2.0**-9)).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def through(ttnn: Any, value: torch.Tensor, dtype: str, layout: str) -> tuple[torch.Tensor, list[int]]:
    """The value as a host tensor gives it back, and the shape that it takes in memory."""
    tensor = ttnn.from_torch(value, dtype=getattr(ttnn, dtype), layout=getattr(ttnn, layout))
    return ttnn.to_torch(tensor), list(tensor.padded_shape)


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.dtype == want.dtype and torch.equal(got.float().view(torch.int32), want.float().view(torch.int32))


shapes = st.one_of(
    st.tuples(st.integers(1, 100)),
    st.tuples(st.integers(1, 70), st.integers(1, 100)),
    st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 100)),
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 40), st.integers(1, 70)),
)
seeds = st.integers(0, 2**31)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", *BLOCK_FLOATS])
@settings(max_examples=15)
@given(shape=shapes, seed=seeds)
def test_a_tile_tensor_holds_the_same_bits(
    real: Target, dtype: str, kind: str, shape: tuple[int, ...], seed: int
) -> None:
    value = values(kind, shape, seed)
    want, want_padded = through(real.ttnn, value, dtype, "TILE_LAYOUT")
    got, padded = through(open_target("emulated").ttnn, value, dtype, "TILE_LAYOUT")
    assert padded == want_padded
    assert same_bits(got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@settings(max_examples=10)
@given(shape=shapes, seed=seeds)
def test_a_row_major_tensor_holds_the_same_bits(
    real: Target, dtype: str, kind: str, shape: tuple[int, ...], seed: int
) -> None:
    value = values(kind, shape, seed)
    want, want_padded = through(real.ttnn, value, dtype, "ROW_MAJOR_LAYOUT")
    got, padded = through(open_target("emulated").ttnn, value, dtype, "ROW_MAJOR_LAYOUT")
    assert padded == want_padded
    assert same_bits(got, want)


@pytest.mark.parametrize("low", [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_bfloat16_rounds_every_number_so(real: Target, low: int) -> None:
    """Every upper half of a float32, with lower halves below, at and above the tie."""
    bits = ((np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)) | np.uint32(low)).reshape(256, 256)
    value = torch.from_numpy(bits.view(np.float32))
    want, _ = through(real.ttnn, value, "bfloat16", "TILE_LAYOUT")
    got, _ = through(open_target("emulated").ttnn, value, "bfloat16", "TILE_LAYOUT")
    assert torch.equal(got.isnan(), want.isnan())  # which of the NaNs is left open
    assert same_bits(got[~got.isnan()], want[~want.isnan()])


@pytest.mark.parametrize("dtype", BLOCK_FLOATS)
def test_a_nan_takes_its_group_the_same_way(real: Target, dtype: str) -> None:
    value = values("normal", (64, 64), 0)
    value[5, 7], value[40, 63] = torch.nan, -torch.nan
    want, _ = through(real.ttnn, value, dtype, "TILE_LAYOUT")
    got, _ = through(open_target("emulated").ttnn, value, dtype, "TILE_LAYOUT")
    assert torch.equal(got.isnan(), want.isnan())
    assert same_bits(got.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("dtype", BLOCK_FLOATS)
def test_bits_that_alignment_shifts_out_do_not_break_a_tie(real: Target, dtype: str) -> None:
    """Over half of the last place only by bits that the shift to the shared exponent drops: real ttnn sees the tie."""
    half = 2.0 ** -BLOCK_FLOATS[dtype]
    value = torch.tensor([[1.0, half * (1 + 2**-23), -half * (1 + 2**-23), 5 * half * (1 + 2**-23)]])
    want, _ = through(real.ttnn, value, dtype, "TILE_LAYOUT")
    assert want.tolist() == [[1.0, 0.0, 0.0, 4 * half]]
    got, _ = through(open_target("emulated").ttnn, value, dtype, "TILE_LAYOUT")
    assert same_bits(got, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint32"])
@settings(max_examples=15)
@given(shape=shapes, seed=seeds)
def test_tilize_and_untilize_move_every_value_to_its_place(
    real: Target, dtype: str, shape: tuple[int, ...], seed: int
) -> None:
    """Real ttnn's to_layout there and back on host tensors, beside the emulated device's on the same values."""
    whole = dtype in ("int32", "uint32")
    value = torch.arange(int(np.prod(shape)), dtype=torch.int32).view(shape) if whole else values("mixed", shape, seed)
    emulated = open_target("emulated")
    found = []
    for ttnn, device in ((real.ttnn, None), (emulated.ttnn, emulated.device)):
        rows = ttnn.from_torch(value, dtype=getattr(ttnn, dtype), layout=ttnn.ROW_MAJOR_LAYOUT, device=device)
        tiles = ttnn.to_layout(rows, ttnn.TILE_LAYOUT)
        back = ttnn.to_layout(tiles, ttnn.ROW_MAJOR_LAYOUT)
        tensors = (rows, tiles, back)
        found.append(
            [(list(t.shape), list(t.padded_shape), ttnn.to_torch(t).to(torch.float64).tolist()) for t in tensors]
        )
    assert found[0] == found[1]
    assert found[0][0] == found[0][2]


@settings(max_examples=15)
@given(shape=shapes, seed=seeds)
def test_values_lie_within_the_padded_shape_where_real_ttnn_puts_them(
    real: Target, shape: tuple[int, ...], seed: int
) -> None:
    """Real ttnn's padded values, with the pad value that it is told, against the emulated tensor's own buffer."""
    value = values("mixed", shape, seed)
    ttnn = real.ttnn
    tiles = ttnn.from_torch(value, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, pad_value=7.0)
    want = tiles.to_torch_with_padded_shape()
    emulated = open_target("emulated", poison=7.0).ttnn
    held = emulated.from_torch(value, dtype=emulated.float32, layout=emulated.TILE_LAYOUT).cell.data
    assert torch.equal(held.reshape(want.shape), want)
