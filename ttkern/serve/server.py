"""Runs the application under uvicorn, and ends it without losing an answer."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ttkern.errors import TtkernError
from ttkern.serve.engine_loop import EngineLoop

_READERS_GRACE_S = 30  # how long finished answers wait for slow readers before the server ends


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises TtkernError when the address cannot be had.

    Bind before the model loads: a port in use is then known at once, not minutes later.
    """
    if not 0 <= port <= 65535:
        raise TtkernError(f"cannot listen on {host}:{port}: a port is 0 (any free one) to 65535")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol must be said: asyncio turns Nagle's delay (40 ms a response) off only where it reads TCP here.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as error:
        reason = error.strerror or str(error)
        raise TtkernError(f"cannot listen on {host}:{port}: {reason}; choose another --host or --port") from None


def run(app: FastAPI, listener: socket.socket, *, log_level: str = "info", access_log: bool = False) -> None:
    """Serve `app`, made by `create_app`, on `listener` until SIGTERM or SIGINT; then drain, and return.

    Draining: what was admitted runs to its end, what comes is a 503. A second signal gives up what still runs.
    Raises TtkernError when the engine has died.
    """
    loop: EngineLoop = app.state.engine_loop
    config = uvicorn.Config(
        app,
        log_level=log_level,
        access_log=access_log,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_READERS_GRACE_S,
    )
    try:
        DrainingServer(config, loop).run(sockets=[listener])
    finally:
        loop.stop()
    if loop.failure is not None:
        raise TtkernError(f"the engine stopped: {loop.failure}")


class DrainingServer(uvicorn.Server):
    """uvicorn closes its socket at the first signal; this one keeps answering (with 503) until what runs is done."""

    def __init__(self, config: uvicorn.Config, engine_loop: EngineLoop) -> None:
        super().__init__(config)
        self._engine_loop = engine_loop
        self._engine_idle_since: float | None = None
        self._give_up = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._give_up = self._engine_loop.draining
        self._engine_loop.drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Unlike uvicorn's own, this does not raise the signal again at the end: a drained server exits with 0.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in handlers.items():
                signal.signal(sig, handler)

    async def on_tick(self, counter: int) -> bool:
        if self._give_up:
            self._engine_loop.stop_soon()  # ends the answers still open with an error
            self.should_exit = True
        elif self._engine_loop.draining and self._drained():
            self.should_exit = True
        return await super().on_tick(counter)

    def _drained(self) -> bool:
        if self._engine_loop.num_open_groups == 0:
            return True
        now = time.monotonic()
        if self._engine_idle_since is None or self._engine_loop.has_requests:
            self._engine_idle_since = now
        return now - self._engine_idle_since > _READERS_GRACE_S
