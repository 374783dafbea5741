"""Real ttnn on a mock board: its argument checks, its allocator, its program cache and its host cost, without a card.

Reads return nothing useful and traces cannot be captured; what a device would take is not known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ttkern.errors import TtkernError
from ttkern.targets.real.library import find_ttnn, start
from ttkern.targets.real.overlay import overlay

# Boards by name, and the chips of each as ttnn's mesh shape.
BOARDS = {"p150": (1, 1), "4xp150": (1, 4), "n150": (1, 1)}


def open_mock_device(board: str = "p150", trace_region_size: int = 0) -> tuple[Any, Any]:
    """The ttnn module and a device on a mock board; a board of several chips is opened as a mesh.

    Raises TtkernError where ttnn is not installed, or this process has opened another cluster with it.
    """
    if board not in BOARDS:
        raise TtkernError(f"board {board!r} is not one of {', '.join(BOARDS)}")
    place = overlay(find_ttnn("mock"), "null")
    descriptor = Path(__file__).with_name("boards") / f"{board}.yaml"
    ttnn = start(f"the mock board {board}", {"TT_METAL_MOCK_CLUSTER_DESC_PATH": str(descriptor), **place.environment})
    shape = BOARDS[board]
    if shape == (1, 1):
        return ttnn, ttnn.open_device(device_id=0, trace_region_size=trace_region_size)
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    return ttnn, ttnn.open_mesh_device(ttnn.MeshShape(*shape), trace_region_size=trace_region_size)
