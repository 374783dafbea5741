"""Block floats bit for bit as ttnn 0.81.1's own host packing rounded them.

block_float.npz holds float32 tiles of many kinds (normal, mixed exponents, huge, tiny, ties, bfloat16, signed zeros,
random bits) and what ttnn.to_torch(ttnn.from_torch(values, dtype=..., layout=TILE)) made of them, as bfloat16 bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ttkern.targets import open_target

GOLDEN = np.load(Path(__file__).with_name("block_float.npz"))


def emulated(values: torch.Tensor, name: str) -> torch.Tensor:
    ttnn = open_target("emulated").ttnn
    return ttnn.to_torch(ttnn.from_torch(values, dtype=getattr(ttnn, name), layout=ttnn.TILE_LAYOUT)).float()


@pytest.mark.parametrize("name", ["bfloat8_b", "bfloat4_b"])
@pytest.mark.parametrize("kind", range(len(GOLDEN["values"])))
def test_rounding_equals_ttnns(name: str, kind: int) -> None:
    want = torch.from_numpy(GOLDEN[name][kind]).view(torch.bfloat16).float()
    got = emulated(torch.from_numpy(GOLDEN["values"][kind]), name)
    assert torch.equal(got.view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("name", ["bfloat8_b", "bfloat4_b"])
def test_padding_takes_no_part(name: str) -> None:
    """A row of 5 rounds like its first 5 values with zeros behind them, whatever the padding holds."""
    row = torch.tensor([[0.3, -0.01, 0.002, 5e-5, -0.2]])
    wide = torch.nn.functional.pad(row, (0, 27))
    assert torch.equal(emulated(row, name), emulated(wide, name)[:, :5])
