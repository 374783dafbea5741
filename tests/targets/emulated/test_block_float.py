"""Block floats bit for bit as ttnn's own host packing rounds them."""

from __future__ import annotations

import os

os.environ.setdefault("TT_LOGGER_LEVEL", "FATAL")

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttkern.targets import open_target

ttnn = pytest.importorskip("ttnn", reason="ttnn is not installed: nothing to compare with")


def real(values: torch.Tensor, name: str) -> torch.Tensor:
    return ttnn.to_torch(ttnn.from_torch(values, dtype=getattr(ttnn, name), layout=ttnn.TILE_LAYOUT)).float()


def ours(values: torch.Tensor, name: str) -> torch.Tensor:
    emulated = open_target("emulated").ttnn
    return emulated.to_torch(
        emulated.from_torch(values, dtype=getattr(emulated, name), layout=emulated.TILE_LAYOUT)
    ).float()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


KINDS = {
    "normal": lambda g, s: torch.randn(s, generator=g),
    "mixed exponents": lambda g, s: torch.randn(s, generator=g) * torch.exp2(torch.randn(s, generator=g) * 12),
    "huge": lambda g, s: torch.randn(s, generator=g) * 1e37,
    "tiny": lambda g, s: torch.randn(s, generator=g) * 1e-37,
    "ties": lambda g, s: torch.randint(-1024, 1024, s, generator=g).float() / 16,
    "bfloat16": lambda g, s: torch.randn(s, generator=g).to(torch.bfloat16).float(),
    "zeros and signs": lambda g, s: torch.randint(-1, 2, s, generator=g).float() * torch.randint(0, 2, s, generator=g),
}


@pytest.mark.parametrize("name", ["bfloat8_b", "bfloat4_b"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(32, 32), (1, 2, 64, 96), (5, 33), (1, 1, 1, 16), (70, 7)])
def test_rounding_equals_ttnns(name: str, kind: str, shape: tuple[int, ...]) -> None:
    values = KINDS[kind](torch.Generator().manual_seed(len(shape)), shape)
    assert same_bits(ours(values, name), real(values, name))


@settings(max_examples=60)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=16, max_size=64),
    st.sampled_from(["bfloat8_b", "bfloat4_b"]),
)
def test_any_finite_values_round_as_ttnns_do(values: list[float], name: str) -> None:
    row = torch.tensor(values).reshape(1, -1)
    assert same_bits(ours(row, name), real(row, name))
