"""Names the op in which a hung device stopped.

A device that hangs shows nothing: the host waits for it in some later call. So each op is waited for before the next
one is sent, and if a wait takes too long, that op is the one. A trace is one op here, by its id; running without traces
(`--enforce-eager`) names the op inside it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# Calls that are a wait themselves, or may not be waited for: inside a capture nothing runs.
_WAITS = ("synchronize_device", "close_device")
ADVICE = """\
  1. This process cannot be saved; it ends now.
  2. Reset the card: tt-smi -r
  3. If it stops in a trace, run again with --enforce-eager: the op inside it is then named.
  4. If it stops in the same op again, run `ttkern check` for the shapes, and that op alone through its cases."""


class Watchdog:
    """Waits for every op, and ends the process when one takes longer than `seconds`.

    wait    blocks until the device has done everything
    expire  what happens then; gets the report
    """

    def __init__(self, wait: Callable[[], Any], seconds: float, expire: Callable[[str], Any] | None = None) -> None:
        self._wait, self._seconds = wait, seconds
        self._expire = expire or _end
        self._running: tuple[str, float] | None = None  # the op that is waited for, and since when
        self._done = "none"
        self._capturing = False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def around(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of ttnn, for `Proxy`."""
        label = f"ttnn.{name}"
        if name in ("execute_trace", "release_trace"):
            label += f" of trace {args[1]}"
        self._running = (label, time.monotonic())
        try:
            if name == "end_trace_capture":
                self._capturing = False
            result = function(*args, **kwargs)
            if name == "begin_trace_capture":
                self._capturing = True
            if not self._capturing and name not in _WAITS:
                self._wait()
        finally:
            self._running = None
        self._done = label
        return result

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self._seconds / 4))
            running = self._running
            if running is not None and time.monotonic() - running[1] > self._seconds:
                self._expire(self._report(running[0]))
                return

    def _report(self, label: str) -> str:
        return (
            f"the device hangs in {label}: no answer for {self._seconds:g} s; the last op it finished is {self._done}"
            f"\n{ADVICE}"
        )


def _end(report: str) -> None:
    """Say so and end: the main thread is stuck in a call that will not return."""
    print(f"ttkern: {report}", file=sys.stderr, flush=True)
    os._exit(70)
