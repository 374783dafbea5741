"""Real ttnn on a mock board: its argument checks, its allocator, its program cache and its host cost, without a card.

Reads return nothing useful and traces cannot be captured; what a device would take is not known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ttkern.errors import TtkernError
from ttkern.targets.real.library import RealDevice, find_ttnn, open_real
from ttkern.targets.real.overlay import overlay

# Boards by name, and the chips of each as ttnn's mesh shape.
BOARDS = {"p150": (1, 1), "4xp150": (1, 4), "n150": (1, 1)}


def open_mock_device(board: str = "p150", trace_region_size: int = 0, target: str = "mock") -> RealDevice:
    """ttnn and a device on a mock board; a board of several chips is opened as a mesh.

    Raises TtkernError where ttnn is not installed, or this process has opened another cluster with it.
    """
    if board not in BOARDS:
        raise TtkernError(f"board {board!r} is not one of {', '.join(BOARDS)}")
    place = overlay(find_ttnn(target), "null")
    descriptor = Path(__file__).with_name("boards") / f"{board}.yaml"
    environment = {"TT_METAL_MOCK_CLUSTER_DESC_PATH": str(descriptor), **place.environment}
    shape = BOARDS[board]

    def mesh(ttnn: Any, size: int) -> Any:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
        return ttnn.open_mesh_device(ttnn.MeshShape(*shape), trace_region_size=size)

    return open_real(f"the mock board {board}", environment, trace_region_size, None if shape == (1, 1) else mesh)
