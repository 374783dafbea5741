"""Replaying a trace in process: when each request was answered, and how much of it was skipped."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ttkern.engine.config import EngineStats
from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, SamplingParams
from ttkern.errors import TtkernError
from ttkern.replay.trace import TraceRequest


class Clock(Protocol):
    """What tells the time of a replay."""

    def now(self) -> float:
        """Seconds since the replay began."""

    def wait_until(self, when: float) -> None:
        """Nothing is due before."""

    def stepped(self, before: EngineStats, after: EngineStats) -> None:
        """The engine has made a step."""


class WallClock:
    """Real time."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._begin

    def wait_until(self, when: float) -> None:
        time.sleep(max(0.0, when - self.now()))

    def stepped(self, before: EngineStats, after: EngineStats) -> None:
        pass


class VirtualClock:
    """Time that passes by the work done, for runners that have no speed of their own."""

    def __init__(self, prefill_token_s: float = 1 / 2048, decode_s: float = 0.03) -> None:
        self._now, self._prefill, self._decode = 0.0, prefill_token_s, decode_s

    def now(self) -> float:
        return self._now

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)

    def stepped(self, before: EngineStats, after: EngineStats) -> None:
        self._now += self._prefill * (after.num_prefilled_tokens - before.num_prefilled_tokens)
        self._now += self._decode * (after.num_generated_tokens > before.num_generated_tokens)


@dataclass
class Row:
    """One request as it went: times in seconds since the replay began."""

    session: str
    turn: int
    prompt_tokens: int
    arrival: float
    first_token: float = 0.0
    end: float = 0.0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.first_token - self.arrival


def replay(engine: Engine, requests: Iterable[TraceRequest], clock: Clock | None = None) -> list[Row]:
    """Send every request when it is due and return when all are answered; rows in the order of the trace.

    Raises TtkernError where the engine refuses or fails one.
    """
    clock = clock or WallClock()
    turns = {(request.session, request.turn): request for request in requests}
    order = {key: number for number, key in enumerate(turns)}
    due = [(request.arrival, order[key], key) for key, request in turns.items() if request.turn == 0]
    heapq.heapify(due)
    history: dict[str, list[int]] = {}
    rows: dict[tuple[str, int], Row] = {}
    running: dict[str, tuple[str, int]] = {}
    while due or engine.has_work():
        while due and due[0][0] <= clock.now():
            arrival, _, key = heapq.heappop(due)
            request = turns[key]
            prompt = history.setdefault(request.session, [])
            prompt += request.tokens(engine.runner.vocab_size)
            params = SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
            name = f"{request.session}/{request.turn}"
            try:
                engine.add_request(Request(name, list(prompt), params))
            except TtkernError as error:
                raise TtkernError(f"session {request.session!r}, turn {request.turn}: {error}") from error
            rows[key], running[name] = Row(*key, len(prompt), arrival), key
        if not engine.has_work():
            clock.wait_until(due[0][0])
            continue
        before = engine.stats()
        outputs = engine.step()
        clock.stepped(before, engine.stats())
        now = clock.now()
        for output in outputs:
            key = running[output.request_id]
            row = rows[key]
            if output.error is not None:
                raise TtkernError(f"session {row.session!r}, turn {row.turn}: {output.error}")
            if not row.first_token and output.token_ids:
                row.first_token = now
            history[row.session] += output.token_ids
            row.cached_tokens, row.output_tokens = output.num_cached_tokens, output.num_output_tokens
            if output.finish_reason is not None:
                row.end = now
                following = (row.session, row.turn + 1)
                if following in turns:
                    heapq.heappush(due, (now + turns[following].arrival, order[following], following))
    return [rows[key] for key in turns]
