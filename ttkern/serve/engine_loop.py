"""The one thread that touches the engine, and the bridge from it to asyncio.

    HTTP handler (event loop)                    engine thread
    submit(requests) ---- command --------->     engine.add_request
    group.next()     <--- outputs, one hop ----  engine.step, over and over while there is work
                          per step
    group.close()    ---- command --------->     engine.abort, for what has not finished

A step never waits for a reader: outputs lie in the group until they are taken, and are then told as one, so that a
stalled reader costs the room of its own answer and nobody's time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, RequestOutput, merge_outputs
from ttkern.serve.errors import ApiError
from ttkern.serve.metrics import Metrics

logger = logging.getLogger(__name__)


class RequestGroup:
    """The engine requests of one HTTP call, seen from its handler. Lives on the event loop; close it in any case."""

    def __init__(self, engine_loop: EngineLoop, requests: Sequence[Request]) -> None:
        self.requests = list(requests)
        self.submitted_at = time.perf_counter()
        self.event_loop = asyncio.get_running_loop()
        self._engine_loop = engine_loop
        self._index = {request.request_id: index for index, request in enumerate(requests)}
        self._unfinished = set(self._index)
        self._waiting: defaultdict[int, list[RequestOutput]] = defaultdict(list)
        self._error: ApiError | None = None
        self._arrived = asyncio.Event()
        self._closed = False

    def deliver(self, output: RequestOutput) -> None:
        self._waiting[self._index[output.request_id]].append(output)
        if output.finish_reason is not None:
            self._unfinished.discard(output.request_id)
        self._arrived.set()

    def fail(self, error: ApiError) -> None:
        self._error = error
        self._arrived.set()

    async def next(self) -> list[tuple[int, RequestOutput]]:
        """What has arrived since the last call, merged per request, as (index, output); empty when all is said.

        Raises ApiError when the engine cannot finish the requests.
        """
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if not self._unfinished:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        taken, self._waiting = self._waiting, defaultdict(list)
        return [(index, merge_outputs(outputs)) for index, outputs in taken.items()]

    async def collect(self) -> list[RequestOutput]:
        """Everything, one output per request, in the order of the requests."""
        parts: list[list[RequestOutput]] = [[] for _ in self.requests]
        while arrived := await self.next():
            for index, output in arrived:
                parts[index].append(output)
        return [merge_outputs(outputs) for outputs in parts]

    def close(self) -> None:
        """Give back what is unfinished, and count the call as over. Safe to call again."""
        if not self._closed:
            self._closed = True
            self._engine_loop.release(self, sorted(self._unfinished))


class EngineLoop:
    """Runs `engine` in a thread of its own. `start` before use, `stop` after it."""

    def __init__(self, engine: Engine, metrics: Metrics | None = None) -> None:
        self.engine = engine
        self.metrics = metrics
        self.stats = engine.stats()  # as of the last step, for readers on other threads
        self.draining = False
        self.failure: str | None = None
        self.num_open_groups = 0  # HTTP calls whose answer is not sent to its end; event loop only
        self._groups: dict[str, RequestGroup] = {}  # by request id; written on the engine thread only
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._over = False
        self._thread: threading.Thread | None = None

    # --- from any thread

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self.failure is None and not self._stopping

    @property
    def accepting(self) -> bool:
        return self.alive and not self.draining

    @property
    def has_requests(self) -> bool:
        return bool(self._groups)

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
            self._thread.start()

    def stop_soon(self) -> None:
        """End the thread after its current step. What still runs fails."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def stop(self) -> None:
        """`stop_soon`, and wait for it."""
        self.stop_soon()
        if self._thread is not None:
            self._thread.join()

    def drain(self) -> None:
        """Refuse new requests from now on; those admitted run to their end."""
        self.draining = True

    def refusal(self) -> ApiError:
        """Why nothing new is taken, when `accepting` is false."""
        if self.failure is not None:
            return ApiError(503, f"the engine has stopped: {self.failure}")
        return ApiError(503, "the server is shutting down and takes no new requests")

    # --- from the event loop

    async def submit(self, requests: Sequence[Request]) -> RequestGroup:
        """Hand `requests` to the engine, all or none.

        Returns once the engine has admitted them, so that what it refuses is known before an answer starts.
        Raises RequestError (the engine refuses one) and ApiError 503 (draining, or the engine is dead).
        """
        if not self.accepting:
            raise self.refusal()
        group = RequestGroup(self, requests)
        admitted: asyncio.Future[None] = group.event_loop.create_future()
        self.num_open_groups += 1
        try:
            self._command(lambda: self._add(group, admitted))
            await admitted
        except BaseException:
            group.close()
            raise
        return group

    def release(self, group: RequestGroup, unfinished: Sequence[str]) -> None:
        self.num_open_groups -= 1
        if unfinished:
            self._command(lambda: self._abort(unfinished))

    # --- on the engine thread

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._commands or self._stopping or self.engine.has_work()):
                        self._wake.wait()
                if self._stopping:
                    break
                while self._commands:
                    self._commands.popleft()()
                if self.engine.has_work():
                    self._publish(self.engine.step())
                self.stats = self.engine.stats()
        except Exception as error:
            logger.exception("the engine has stopped")
            self.failure = f"{type(error).__name__}: {error}".splitlines()[0]
        groups, self._groups = set(self._groups.values()), {}
        for group in groups:
            self._to_event_loop(group, partial(group.fail, self.refusal()))
        with self._wake:
            self._over = True
        while self._commands:
            self._commands.popleft()()

    def _command(self, command: Callable[[], None]) -> None:
        with self._wake:
            if not self._over:
                self._commands.append(command)
                self._wake.notify()
                return
        command()  # the thread is over: it answers for itself that nothing can be done

    def _add(self, group: RequestGroup, admitted: asyncio.Future[None]) -> None:
        error: Exception | None = self.refusal() if self._stopping or self._over else None
        added: list[str] = []
        try:
            for request in group.requests if error is None else ():
                self.engine.add_request(request)
                added.append(request.request_id)
        except ValueError as refused:
            error = refused
        except Exception as failed:
            logger.exception("the engine failed to take a request")
            error = failed
        if error is None:
            self._groups.update((request_id, group) for request_id in added)
        else:
            for request_id in added:
                self.engine.abort(request_id)

        def answer() -> None:
            if admitted.done():
                return
            if error is None:
                admitted.set_result(None)
            else:
                admitted.set_exception(error)

        self._to_event_loop(group, answer)

    def _abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if self._groups.pop(request_id, None) is not None:
                self.engine.abort(request_id)
                if self.metrics is not None:
                    self.metrics.observe_abort(request_id)

    def _publish(self, outputs: Sequence[RequestOutput]) -> None:
        now = time.perf_counter()
        ready: dict[asyncio.AbstractEventLoop, list[tuple[RequestGroup, RequestOutput]]] = {}
        for output in outputs:
            group = self._groups.get(output.request_id)
            if group is None:
                continue
            if self.metrics is not None:
                self.metrics.observe_output(output, group.submitted_at, now)
            if output.finish_reason is not None:
                del self._groups[output.request_id]
            ready.setdefault(group.event_loop, []).append((group, output))
        for event_loop, batch in ready.items():
            try:
                event_loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:  # that event loop is closed: nobody reads any more
                for _, output in batch:
                    if self._groups.pop(output.request_id, None) is not None:
                        self.engine.abort(output.request_id)

    @staticmethod
    def _to_event_loop(group: RequestGroup, callback: Callable[[], None]) -> None:
        try:
            group.event_loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.debug("an event loop closed before its answer was ready")


def _deliver(batch: Sequence[tuple[RequestGroup, RequestOutput]]) -> None:
    for group, output in batch:
        group.deliver(output)
