"""Captured traces: the body of a step as one replay, or run eagerly where a target cannot capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Trace:
    """A function without arguments over persistent device tensors, captured once.

    Capture records the calls and does not run them. `outputs` are the device tensors that each replay fills again.
    """

    def __init__(self, name: str, target: Any, body: Callable[[], Any]) -> None:
        self.name, self.target, self.body = name, target, body
        self.outputs: Any = None
        self._id: Any = None

    def compile(self) -> None:
        """Run the body once, so that its programs exist before misses are forbidden and the capture begins."""
        self.body()
        self.target.ttnn.synchronize_device(self.target.device)

    def capture(self) -> None:
        """Record the body."""
        if not self.target.has_trace:
            return
        ttnn, device = self.target.ttnn, self.target.device
        self._id = ttnn.begin_trace_capture(device, cq_id=0)
        self.outputs = self.body()
        ttnn.end_trace_capture(device, self._id, cq_id=0)

    def replay(self) -> Any:
        """Run the step on what its input tensors hold now; returns `outputs`."""
        if self._id is None:
            self.outputs = self.body()
        else:
            self.target.ttnn.execute_trace(self.target.device, self._id, cq_id=0, blocking=False)
        return self.outputs

    def release(self) -> None:
        """Give the trace's device memory back."""
        if self._id is not None:
            self.target.ttnn.release_trace(self.target.device, self._id)
            self._id = None
