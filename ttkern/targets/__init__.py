"""Where ttnn calls go. Ops are written once; a target is chosen at start-up and handed to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ttkern.errors import TtkernError

TARGETS = ("emulated", "mock")


@dataclass
class Target:
    """One place to run: its ttnn, its device or mesh, and what it can do.

    ttnn        the real library, or an object with the same names
    device      ttnn's device
    has_data    reading a tensor gives what was computed
    has_timing  how long a call takes says something about a card
    has_trace   traces can be captured and replayed
    """

    name: str
    ttnn: Any
    device: Any
    has_data: bool
    has_timing: bool
    has_trace: bool

    def close(self) -> None:
        """Close the device; nothing can be called on it afterwards."""
        self.ttnn.close_device(self.device)


def open_target(
    name: str = "emulated", *, exact: bool = False, poison: float = math.nan, trace_region_size: int = 0
) -> Target:
    """Open a target by name.

    exact              emulated only: float32 values whatever dtype is declared, for comparing with transformers
    poison             emulated only: what tile padding and unwritten buffers hold
    trace_region_size  bytes of DRAM set aside for traces (0: as much as is needed)

    Raises TtkernError for a name that is not a target.
    """
    if name == "emulated":
        from ttkern.targets.emulated import Namespace

        ttnn = Namespace(exact=exact, poison=poison)
        device = ttnn.open_device(trace_region_size=trace_region_size)
        return Target("emulated", ttnn, device, has_data=True, has_timing=False, has_trace=True)
    if name == "mock":
        if exact:
            raise TtkernError("target 'mock' computes nothing, so it has no exact mode")
        from ttkern.targets.mock import open_mock_device

        ttnn, device = open_mock_device(trace_region_size=trace_region_size)
        return Target("mock", ttnn, device, has_data=False, has_timing=False, has_trace=False)
    raise TtkernError(f"target {name!r} is not one of {', '.join(TARGETS)}")
