"""Persistent input tensors of a step: made once, refreshed by one host-to-device copy each, at addresses that stay."""

from __future__ import annotations

from typing import Any

import torch


class DeviceInput:
    """One input tensor on the device, and the host tensor last copied into it."""

    def __init__(self, target: Any, shape: tuple[int, ...], dtype: str, *, layout: str = "row_major") -> None:
        ttnn = target.ttnn
        self._target = target
        self._dtype = getattr(ttnn, dtype)
        self._layout = ttnn.TILE_LAYOUT if layout == "tile" else ttnn.ROW_MAJOR_LAYOUT
        self._torch_dtype = torch.int32 if dtype in ("int32", "uint32") else torch.float32
        self.shape = shape
        self.tensor = ttnn.zeros(shape, dtype=self._dtype, layout=self._layout, device=target.device)
        self._host: Any = None

    def refresh(self, values: Any) -> None:
        """Copy `values` (anything torch.as_tensor takes, of the right number of elements) to the device."""
        ttnn = self._target.ttnn
        host = torch.as_tensor(values, dtype=self._torch_dtype).reshape(self.shape)
        # Kept until the next refresh: the device may not have read it yet when this returns.
        self._host = ttnn.from_torch(host, dtype=self._dtype, layout=self._layout)
        ttnn.copy_host_to_device_tensor(self._host, self.tensor)
