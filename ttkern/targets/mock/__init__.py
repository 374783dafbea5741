"""Real ttnn on a mock board: its argument checks, its allocator, its program cache and its host cost, without a card.

Reads return nothing useful and traces cannot be captured; what a device would take is not known.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ttkern.errors import TtkernError
from ttkern.targets.mock.toolchain import overlay

BOARDS = ("p150",)
_MOCK = "TT_METAL_MOCK_CLUSTER_DESC_PATH"


def open_mock_device(board: str = "p150", trace_region_size: int = 0) -> tuple[Any, Any]:
    """The ttnn module and a device on a mock board.

    ttnn reads where its board is when it opens its first device in a process, so one process has one kind of board.

    Raises TtkernError where ttnn is not installed, or this process has opened something else with it.
    """
    if board not in BOARDS:
        raise TtkernError(f"board {board!r} is not one of {', '.join(BOARDS)}")
    spec = importlib.util.find_spec("ttnn")
    if spec is None or spec.origin is None:
        raise TtkernError(
            "target 'mock' needs ttnn: pip install ttnn==0.81.1 (wheels for CPython 3.10 and 3.12 on Linux x86-64)"
        )
    descriptor = str(Path(__file__).with_name("boards") / f"{board}.yaml")
    if "ttnn" in sys.modules and os.environ.get(_MOCK) != descriptor:
        raise TtkernError("target 'mock': ttnn is loaded in this process for another board; use a process of its own")
    place = overlay(Path(spec.origin).parent, version("ttnn"))
    os.environ.update(
        {
            _MOCK: descriptor,
            "TT_METAL_RUNTIME_ROOT": str(place / "root"),
            "TT_METAL_CACHE": f"{place / 'kernels'}/",
            "TT_METAL_LOGS_PATH": str(place / "logs"),
        }
    )
    os.environ.setdefault("TT_METAL_LOGGER_LEVEL", "FATAL")
    os.environ.setdefault("TT_LOGGER_LEVEL", "FATAL")
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")
    import ttnn

    return ttnn, ttnn.open_device(device_id=0, trace_region_size=trace_region_size)
