"""Where ttnn calls go. Ops are written once; a target is chosen at start-up and handed to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ttkern.errors import TtkernError
from ttkern.targets.real.library import run_apart

__all__ = ["TARGETS", "Target", "default_target", "open_target", "run_apart"]

TARGETS = ("emulated", "mirror", "mock", "simulated", "silicon")


@dataclass
class Target:
    """One place to run: its ttnn, its device or mesh, and what it can do.

    ttnn        the real library, or an object with the same names
    device      ttnn's device
    has_data    reading a tensor gives the bytes that were written to it
    computes    ops compute: reading an op's output gives its result
    has_timing  how long a call takes is how long a card takes
    has_trace   traces can be captured and replayed
    """

    name: str
    ttnn: Any
    device: Any
    has_data: bool
    computes: bool
    has_timing: bool
    has_trace: bool

    def close(self) -> None:
        """Close the device; nothing can be called on it afterwards."""
        if self.device.get_num_devices() > 1:
            self.ttnn.close_mesh_device(self.device)
        else:
            self.ttnn.close_device(self.device)


def default_target() -> str:
    """silicon where there is a card, else emulated."""
    from ttkern.targets.real.silicon import cards

    return "silicon" if cards() else "emulated"


def open_target(
    name: str = "emulated",
    *,
    exact: bool = False,
    poison: float = math.nan,
    board: str = "p150",
    trace_region_size: int = 0,
    watchdog_seconds: float = 0,
) -> Target:
    """Open a target by name.

    name               emulated; mirror: emulated, with real ttnn on the mock board judging every call; mock; simulated;
                       silicon
    exact              emulated and mirror: float32 values whatever dtype is declared, for comparing with transformers
    poison             emulated and mirror: what tile padding and unwritten buffers hold
    board              mock only: p150, 4xp150 (a 1x4 mesh) or n150
    trace_region_size  bytes of DRAM set aside for traces; real targets need them to capture any
    watchdog_seconds   silicon only: end the process, naming the op, when a wait takes longer (0: never)

    One process holds one real cluster, and any number of emulated devices beside it; see `run_apart`.

    Raises TtkernError for a name that is not a target, and where that target cannot open here.
    """
    if exact and name not in ("emulated", "mirror"):
        raise TtkernError(f"target {name!r} has no exact mode: only the emulated device computes in float32 throughout")
    if name in ("emulated", "mirror"):
        from ttkern.targets.emulated import Namespace

        emulated = Namespace(exact=exact, poison=poison)
        device = emulated.open_device(trace_region_size=trace_region_size)
        ttnn: Any = emulated
        if name == "mirror":
            from ttkern.targets.mirror import Mirror
            from ttkern.targets.real.mock import open_mock_device

            ttnn = Mirror(emulated, *open_mock_device(board)).ttnn
        return Target(name, ttnn, device, has_data=True, computes=True, has_timing=False, has_trace=True)
    if name == "mock":
        from ttkern.targets.real.mock import open_mock_device

        real, mock = open_mock_device(board, trace_region_size)
        return Target(name, real, mock, has_data=False, computes=False, has_timing=False, has_trace=False)
    if name == "simulated":
        from ttkern.targets.real.simulated import open_simulated_device

        sim = open_simulated_device(trace_region_size)
        return Target(
            name, sim.ttnn, sim.device, has_data=True, computes=sim.computes, has_timing=False, has_trace=sim.has_trace
        )
    if name == "silicon":
        from ttkern.targets.real.silicon import open_card

        real, card = open_card(trace_region_size, watchdog_seconds)
        return Target(name, real, card, has_data=True, computes=True, has_timing=True, has_trace=True)
    raise TtkernError(f"target {name!r} is not one of {', '.join(TARGETS)}")
