"""bfloat8_b and bfloat4_b: 16 neighbours of a row share the largest one's exponent; the mantissas keep 7 or 3 bits."""

from __future__ import annotations

import torch

GROUP = 16


def round_to_block_float(values: torch.Tensor, mantissa_bits: int) -> torch.Tensor:
    """Values as a block float of `mantissa_bits` magnitude bits holds them.

    values   float32 [..., W], W a multiple of 16
    returns  float32, the same shape; rounding is to nearest, ties to even, saturating at the largest magnitude.
             Subnormal float32 count as zero, as in ttnn's packer, and so does a group whose exponent is 0.
    Source: ttnn's host packer, whose outputs are compared bit for bit in the tests.
    """
    groups = values.reshape(*values.shape[:-1], -1, GROUP)
    bits = groups.contiguous().view(torch.int32)
    exponent = (bits >> 23) & 0xFF
    mantissa = torch.where(exponent == 0, 0, (bits & 0x7FFFFF) | 0x800000)  # 24 bits, the hidden one included
    shared = exponent.amax(dim=-1, keepdim=True)
    # The packer shifts to the shared exponent first, and what falls off there has no say in the rounding.
    mantissa = mantissa >> (shared - exponent).clamp(max=31)
    # The hidden bit of the largest element lands on the top magnitude bit.
    drop = 24 - mantissa_bits
    floor = mantissa >> drop
    rest, half = mantissa - (floor << drop), 1 << (drop - 1)
    up = (rest > half) | ((rest == half) & ((floor & 1) == 1))
    magnitude = (floor + up.to(torch.int32)).clamp(max=(1 << mantissa_bits) - 1)
    scale = torch.exp2((shared - 127 - (mantissa_bits - 1)).to(torch.float64))
    rounded = (magnitude.to(torch.float64) * scale).to(torch.float32)
    # A mantissa of zero has no sign: the packer's negative zero is zero.
    signed = torch.where((bits < 0) & (magnitude > 0), -rounded, rounded).reshape(values.shape)
    return torch.where(values.isnan(), values, signed)
