"""Ops: one folder each, with its reference, cases and variants. The only code that calls ttnn compute."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.registry import Op


@lru_cache(maxsize=1)
def folders() -> dict[str, list[Op]]:
    """What each op's folder lists as its `OPS`."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    return {name: list(importlib.import_module(f"ops.{name}").OPS) for name in names}


@lru_cache(maxsize=1)
def all_ops() -> dict[str, Op]:
    """Every op by name."""
    return {op.name: op for found in folders().values() for op in found}
