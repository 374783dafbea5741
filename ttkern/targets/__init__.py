"""Where ttnn calls go. Ops are written once; a target is chosen at start-up and handed to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ttkern.errors import TtkernError
from ttkern.targets.real.library import RealDevice, run_apart

__all__ = ["TARGETS", "Abilities", "Target", "abilities", "default_target", "open_target", "run_apart"]

TARGETS = ("emulated", "mirror", "mock", "simulated", "silicon")


@dataclass(frozen=True)
class Abilities:
    """What a target can do.

    has_data    reading a tensor gives the bytes that were written to it
    computes    ops compute: reading an op's output gives its result
    has_timing  how long a call takes is how long a card takes
    has_trace   traces can be captured and replayed
    """

    has_data: bool
    computes: bool
    has_timing: bool
    has_trace: bool


@dataclass
class Target:
    """One place to run: its ttnn (the real library, or an object with the same names), its device, its abilities."""

    name: str
    ttnn: Any
    device: Any
    has_data: bool
    computes: bool
    has_timing: bool
    has_trace: bool
    close: Callable[[], None]
    """Closes the device, with the last target that has it open; nothing can be called on it afterwards."""


def default_target() -> str:
    """silicon where there is a card, else emulated."""
    from ttkern.targets.real.silicon import cards

    return "silicon" if cards() else "emulated"


def abilities(name: str) -> Abilities:
    """What a target can do here, told without opening it.

    Raises TtkernError for a name that is not a target, and where what it needs is missing.
    """
    if name in ("emulated", "mirror"):
        return Abilities(has_data=True, computes=True, has_timing=False, has_trace=True)
    if name == "mock":
        return Abilities(has_data=False, computes=False, has_timing=False, has_trace=False)
    if name == "simulated":
        from ttkern.targets.real.simulated import find_simulator

        simulator = find_simulator()
        return Abilities(has_data=True, computes=simulator.computes, has_timing=False, has_trace=simulator.fast)
    if name == "silicon":
        return Abilities(has_data=True, computes=True, has_timing=True, has_trace=True)
    raise TtkernError(f"target {name!r} is not one of {', '.join(TARGETS)}")


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

    One process holds one real cluster, and any number of emulated devices beside it; see `run_apart`. Targets of one
    cluster share its device and its program cache.

    Raises TtkernError for a name that is not a target, and where that target cannot open here.
    """
    can = vars(abilities(name))
    if exact and name not in ("emulated", "mirror"):
        raise TtkernError(f"target {name!r} has no exact mode: only the emulated device computes in float32 throughout")
    if trace_region_size < 0:
        raise TtkernError(f"trace region size is {trace_region_size}; it must be at least 0 bytes")
    if name in ("emulated", "mirror"):
        from ttkern.targets.emulated import Namespace

        emulated = Namespace(exact=exact, poison=poison)
        device = emulated.open_device(trace_region_size=trace_region_size)
        if name == "emulated":
            return Target(name, emulated, device, **can, close=lambda: emulated.close_device(device))
        from ttkern.targets.mirror import Mirror
        from ttkern.targets.real.mock import open_mock_device

        mirror = Mirror(emulated, device, open_mock_device(board, target=name))
        return Target(name, mirror.ttnn, device, **can, close=mirror.close)
    real = _open_real(name, board, trace_region_size, watchdog_seconds)
    return Target(name, real.ttnn, real.device, **can, close=real.close)


def _open_real(name: str, board: str, trace_region_size: int, watchdog_seconds: float) -> RealDevice:
    if name == "mock":
        from ttkern.targets.real.mock import open_mock_device

        return open_mock_device(board, trace_region_size)
    if name == "simulated":
        from ttkern.targets.real.simulated import open_simulated_device

        return open_simulated_device(trace_region_size)
    from ttkern.targets.real.silicon import open_card

    return open_card(trace_region_size, watchdog_seconds)
