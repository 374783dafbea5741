"""ttkern: write a prefill path once against ttnn; see it proven, measured and served.

`open_target`, `load_model` and `Engine` are what the command line uses. They are imported when first asked for, so
that `import ttkern` and `ttkern --help` take no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttkern.engine.engine import Engine
    from ttkern.model.load import load_model
    from ttkern.targets import open_target

__version__ = "0.1.0"
__all__ = ["Engine", "__version__", "load_model", "open_target"]

_MODULES = {"Engine": "ttkern.engine.engine", "load_model": "ttkern.model.load", "open_target": "ttkern.targets"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ttkern' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
