"""Finding ttnn, setting its environment, and keeping a process to the one cluster that ttnn opens in it."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ttkern.errors import TtkernError

T = TypeVar("T")
VERSION = "0.81.1"
# Variables that say where ttnn finds its device and its compiler; what a target does not set must not be there.
PLACE = (
    "TT_METAL_MOCK_CLUSTER_DESC_PATH",
    "TT_METAL_SIMULATOR",
    "TT_METAL_SLOW_DISPATCH_MODE",
    "TT_METAL_RUNTIME_ROOT",
    "TT_METAL_CACHE",
    "TT_METAL_LOGS_PATH",
)


@dataclass
class _Opened:
    """The cluster of this process: its device while any target has it open, and how many have."""

    cluster: str
    trace_region_size: int = 0
    device: Any = None
    users: int = 0


_opened: _Opened | None = None


@dataclass(frozen=True)
class RealDevice:
    """The ttnn module, a device or mesh, and what gives it back."""

    ttnn: Any
    device: Any
    close: Callable[[], None]


def find_ttnn(target: str) -> Path:
    """The installed ttnn package. Raises TtkernError, saying what to install, where there is none or half of one."""
    spec = importlib.util.find_spec("ttnn")
    wanted = f"pip install ttnn=={VERSION} (wheels for CPython 3.10 and 3.12 on Linux x86-64)"
    if spec is None:
        raise TtkernError(f"target {target!r} needs ttnn: {wanted}")
    if spec.origin is None or not list(Path(spec.origin).parent.glob("_ttnn*.so")):
        where = spec.origin or ", ".join(spec.submodule_search_locations or ())
        raise TtkernError(f"target {target!r} needs ttnn, and {where} has no library: {wanted}")
    return Path(spec.origin).parent


def open_real(
    cluster: str,
    environment: Mapping[str, str],
    trace_region_size: int = 0,
    open_: Callable[[Any, int], Any] | None = None,
) -> RealDevice:
    """ttnn with its environment set for a cluster, and the cluster's device.

    cluster      what is opened, in words; the same words for the same cluster
    environment  the variables of PLACE that it needs, and any others
    open_        how, given ttnn and the trace region's size; None opens the first device

    Targets of one cluster share its device, which closes with the last of them.

    Raises TtkernError where this process has opened another cluster, and where ttnn cannot be imported or opened.
    """
    global _opened
    if _opened is not None and _opened.cluster != cluster:
        raise TtkernError(
            f"this process has opened {_opened.cluster} with ttnn, which opens one cluster in a process;"
            f" open {cluster} in another (ttkern.targets.run_apart)"
        )
    ttnn = _start(environment)
    opened = _opened or _Opened(cluster)
    if not opened.users:
        try:
            device = (open_ or _first_device)(ttnn, trace_region_size)
        except Exception as error:
            raise TtkernError(f"ttnn does not open {cluster}: {reason(error)}") from error
        opened.device, opened.trace_region_size = device, trace_region_size
    elif opened.trace_region_size != trace_region_size:
        raise TtkernError(
            f"{cluster} is open with a trace region of {opened.trace_region_size} bytes, not {trace_region_size};"
            " close it first"
        )
    opened.users += 1
    _opened = opened
    closed = False

    def close() -> None:
        nonlocal closed
        if closed:
            return
        closed = True
        opened.users -= 1
        if not opened.users:
            device, opened.device = opened.device, None
            (ttnn.close_mesh_device if device.get_num_devices() > 1 else ttnn.close_device)(device)

    return RealDevice(ttnn, opened.device, close)


def _first_device(ttnn: Any, trace_region_size: int) -> Any:
    return ttnn.open_device(device_id=0, trace_region_size=trace_region_size)


def _start(environment: Mapping[str, str]) -> Any:
    for name in PLACE:
        os.environ.pop(name, None)
    os.environ.update(environment)
    # Its loggers write to stdout, where a report may be expected.
    for name, level in (("TT_METAL_LOGGER_LEVEL", "FATAL"), ("TT_LOGGER_LEVEL", "FATAL"), ("LOGURU_LEVEL", "WARNING")):
        os.environ.setdefault(name, level)
    os.environ.setdefault("HOME", str(Path.home()))  # without it the library ends the process
    try:
        import ttnn
    except Exception as error:
        raise TtkernError(f"ttnn cannot be imported: {reason(error)}") from error
    return ttnn


def reason(error: BaseException) -> str:
    """One line: ttnn's own words without its backtrace; of what is no refusal of ttnn's, its type too."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "info:" in lines[:-1]:
        return lines[lines.index("info:") + 1]
    kind = type(error).__name__
    if isinstance(error, (RuntimeError, TypeError)) and lines:
        return lines[0]
    return f"{kind}: {lines[0]}" if lines else kind


def run_apart(function: Callable[..., T], *args: Any) -> T:
    """The result of a module-level function, called in a new process: for a second cluster, or one that may crash.

    Raises what the function raises, and BrokenProcessPool where the process died.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()
