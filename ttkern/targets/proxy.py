"""ttnn with something done around every call: counting, timing, watching, checking."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

# Functions of ttnn that describe a call and are none: nothing reaches a device.
DESCRIPTIONS = ("init_device_compute_kernel_config", "create_sharded_memory_config", "num_cores_to_corerangeset")
Around = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Proxy:
    """Stands for a ttnn: `around(name, function, args, kwargs)` is called for each of its functions, by dotted name.

    `around` calls the function itself and returns what the caller gets.
    """

    def __init__(self, real: Any, around: Around, prefix: str = "") -> None:
        self._real, self._around, self._prefix = real, around, prefix

    def __getattr__(self, name: str) -> Any:
        value, path = getattr(self._real, name), f"{self._prefix}{name}"
        if isinstance(value, (ModuleType, SimpleNamespace)):
            value = Proxy(value, self._around, f"{path}.")
        elif callable(value) and not isinstance(value, type) and name not in DESCRIPTIONS:
            value = self._wrapped(path, value)
        setattr(self, name, value)
        return value

    def _wrapped(self, path: str, function: Callable[..., Any]) -> Callable[..., Any]:
        around = self._around

        def call(*args: Any, **kwargs: Any) -> Any:
            return around(path, function, args, kwargs)

        return call
