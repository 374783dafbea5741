"""Decode steps in flight: the next one is launched before the last one's tokens are read, where it surely is needed.

    launch k+1        launch k+2
    |  wait for k     |  wait for k+1         the device goes on while the host reads, detokenises and answers
    v                 v
    k tokens          k+1 tokens

Ahead of its tokens a step can be launched only if they are the device's own argmax, which lies where the step reads it.
Else it is launched as soon as they are known. Either way one is in flight when a prefill step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from ttkern.engine.reuse import Reuse
from ttkern.engine.runner_protocol import DecodeRow, Runner, Sampled
from ttkern.engine.scheduler import Scheduler
from ttkern.engine.sequence import Sequence


@dataclass(frozen=True)
class Flight:
    """A decode step on its way: who is in it, where their states go, and how its tokens are had."""

    sequences: list[Sequence]
    places: list[int | None]
    collect: Callable[[], list[Sampled]]


class Decoding:
    """Launches decode steps of all running sequences; at most one is in flight when nobody waits for one."""

    def __init__(self, runner: Runner, scheduler: Scheduler, reuse: Reuse, chunk_tokens: int) -> None:
        self._runner, self._scheduler, self._reuse = runner, scheduler, reuse
        self._chunk_tokens = chunk_tokens
        self._flight: Flight | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a step has been launched whose tokens nobody has read."""
        return self._flight is not None

    def take(self) -> Flight:
        """The step whose tokens are due; the one after it is launched if it can be before they are known."""
        flight = self._flight or self._launch(self._scheduler.schedule_decode())
        self._flight = self._launch_ahead(flight.sequences)
        return flight

    def keep_going(self) -> None:
        """The tokens are known now: launch what could not be before."""
        if self._flight is None and self._scheduler.running:
            self._flight = self._launch(self._scheduler.schedule_decode())

    def give_up(self, flight: Flight) -> None:
        """A step failed: nothing comes of it, nor of one launched after it."""
        self._flight = None
        for place in flight.places:
            self._reuse.give_up(place)

    def _launch(self, running: Iterable[Sequence]) -> Flight:
        sequences, places = list(running), list[int | None]()
        if not sequences:
            return Flight([], [], list)
        try:
            places += (self._reuse.place_for_decode(sequence) for sequence in sequences)
            rows = [_row(sequence, place) for sequence, place in zip(sequences, places, strict=True)]
            return Flight(sequences, places, self._runner.launch_decode(rows))
        except Exception as error:
            return Flight(sequences, places, partial(_raise, error))

    def _launch_ahead(self, sequences: list[Sequence]) -> Flight | None:
        """A sequence that turns out to have ended computes a token that nobody takes."""
        running = self._scheduler.running
        if not running or sequences != running or not all(self._may_go_on(sequence) for sequence in running):
            return None
        if not self._scheduler.reserve_next_blocks():
            return None
        try:
            collect = self._runner.launch_decode([_next_row(sequence) for sequence in running])
        except Exception as error:
            collect = partial(_raise, error)
        return Flight(list(running), [None] * len(running), collect)

    def _may_go_on(self, sequence: Sequence) -> bool:
        now, following = sequence.sample_spec(), sequence.sample_spec(1)
        plain = now.temperature == 0 and now.logprobs is None and not now.forbidden and not following.forbidden
        crosses = (len(sequence.token_ids) + 1) % self._chunk_tokens == 0
        return plain and not crosses and sequence.num_output_tokens + 1 < sequence.token_limit


def _raise(error: Exception) -> list[Sampled]:
    raise error


def _next_row(sequence: Sequence) -> DecodeRow:
    """The step after the one that is under way: its token lies on the device."""
    assert sequence.slot is not None
    return DecodeRow(sequence.slot, None, len(sequence.token_ids), sequence.block_table, sequence.sample_spec(1))


def _row(sequence: Sequence, place: int | None) -> DecodeRow:
    assert sequence.slot is not None
    return DecodeRow(
        slot=sequence.slot,
        token=sequence.token_ids[-1],
        position=len(sequence.token_ids) - 1,
        block_table=sequence.block_table,
        sample=sequence.sample_spec(),
        save_to=place,
    )
