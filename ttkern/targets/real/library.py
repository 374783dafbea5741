"""Finding ttnn, setting its environment, and keeping a process to the one cluster that ttnn opens in it."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
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
_opened: str | None = None


def find_ttnn(target: str) -> Path:
    """The installed ttnn package. Raises TtkernError, saying what to install, where there is none."""
    spec = importlib.util.find_spec("ttnn")
    if spec is None or spec.origin is None:
        raise TtkernError(
            f"target {target!r} needs ttnn: pip install ttnn=={VERSION}"
            " (wheels for CPython 3.10 and 3.12 on Linux x86-64)"
        )
    return Path(spec.origin).parent


def start(cluster: str, environment: Mapping[str, str]) -> Any:
    """ttnn, with its environment set for a cluster.

    cluster      what will be opened, in words; the same words for the same cluster
    environment  the variables of PLACE that it needs, and any others

    Raises TtkernError where this process has already opened another cluster.
    """
    global _opened
    if _opened not in (None, cluster):
        raise TtkernError(
            f"this process has opened {_opened} with ttnn, which opens one cluster in a process;"
            f" open {cluster} in another (ttkern.targets.run_apart)"
        )
    for name in PLACE:
        os.environ.pop(name, None)
    os.environ.update(environment)
    # Its loggers write to stdout, where a report may be expected.
    for name, level in (("TT_METAL_LOGGER_LEVEL", "FATAL"), ("TT_LOGGER_LEVEL", "FATAL"), ("LOGURU_LEVEL", "WARNING")):
        os.environ.setdefault(name, level)
    import ttnn

    _opened = cluster
    return ttnn


def run_apart(function: Callable[..., T], *args: Any) -> T:
    """The result of a module-level function, called in a new process: for a second cluster, or one that may crash.

    Raises what the function raises, and BrokenProcessPool where the process died.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()
