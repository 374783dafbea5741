"""Real ttnn on a card. Never run on one by this project's own tests: kept to opening it safely."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ttkern.errors import TtkernError
from ttkern.targets.proxy import Proxy
from ttkern.targets.real.library import RealDevice, find_ttnn, open_real
from ttkern.targets.real.overlay import compiler_of, is_stand_in
from ttkern.targets.real.simulated import SIMULATOR, sfpi
from ttkern.targets.real.watchdog import Watchdog

CARDS = Path("/dev/tenstorrent")
ELSEWHERE = ("TT_METAL_MOCK_CLUSTER_DESC_PATH", SIMULATOR)


def open_card(trace_region_size: int = 0, watchdog_seconds: float = 0) -> RealDevice:
    """ttnn and the first card.

    One command queue: what a step uploads is a few kB, and the next step's inputs lie in the same buffers, so a
    second queue would only wait for the first.

    Raises TtkernError where there is no card or no compiler, where ttnn would use a stand-in compiler, and where the
    environment points ttnn at a mock board or a simulator.
    """
    package = find_ttnn("silicon")
    root = Path(os.environ.get("TT_METAL_RUNTIME_ROOT") or package)
    refuse_stand_in(root)
    for name in ELSEWHERE:
        if os.environ.get(name):
            raise TtkernError(f"target 'silicon': {name} is set, so ttnn would not open a card; unset it")
    if not cards():
        raise TtkernError(f"target 'silicon' needs a card: {CARDS} does not exist (is tt-kmd loaded?)")
    if sfpi(root) is None:
        raise TtkernError(
            f"target 'silicon' needs the SFPI compiler, at {compiler_of(root)} or under /opt/tenstorrent/sfpi;"
            " README.md, 'On a card', says how to install it"
        )
    kept = {name: os.environ[name] for name in ("TT_METAL_RUNTIME_ROOT", "TT_METAL_CACHE") if name in os.environ}
    real = open_real("a card", kept, trace_region_size)
    if not watchdog_seconds:
        return real
    watchdog = Watchdog(lambda: real.ttnn.synchronize_device(real.device), watchdog_seconds)
    return replace(real, ttnn=Proxy(real.ttnn, watchdog.around))


def refuse_stand_in(root: Path) -> None:
    """Raises TtkernError where ttnn would compile a card's kernels with a stand-in: all of them would be empty."""
    if is_stand_in(root):
        raise TtkernError(
            f"target 'silicon': the compiler under {root} is a stand-in that writes empty kernels, and a card must"
            " never run them; unset TT_METAL_RUNTIME_ROOT and TT_METAL_CACHE"
        )


def cards() -> list[Path]:
    """The cards that the kernel driver shows."""
    return sorted(CARDS.iterdir()) if CARDS.is_dir() else []
