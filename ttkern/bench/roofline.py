"""The least time that a named card could take: bytes over its memory's bandwidth, FLOPs over its matrix engines'."""

from __future__ import annotations

from dataclasses import dataclass

from ttkern.bench.timing import Cost


@dataclass(frozen=True)
class Card:
    """One chip. bandwidth in bytes/s; flops: of bfloat16 products at HiFi4, a second.

    Sources: Tenstorrent's product pages (memory bandwidth, clock), the board descriptors' worker cores as ttnn counts
    them, and tt-metal's matrix engine report (1,024 floating-point operations per core and cycle at HiFi4).
    """

    name: str
    bandwidth: float
    flops: float


CARDS = {
    "p150": Card("p150", 512e9, 130 * 1.35e9 * 1024),
    "n150": Card("n150", 288e9, 64 * 1.0e9 * 1024),
}


def roofline_seconds(cost: Cost, card: Card) -> float:
    """The larger of the two."""
    return max(cost.bytes / card.bandwidth, cost.flops / card.flops)
