"""When a request looks for what is known, and which of its states are kept: the rules between scheduler and cache.

A state is kept where it will be hit:
    where prompts fork       the last chunk border that this prompt shares with one that waits, or with blocks that are
                             known without a state
    at the prompt's end      its last chunk border: the next turn sends all of it again
    at a border that the answer crosses
    at any other border      only into places that are free
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from ttkern.engine.prefix_cache import NOTHING, Match, PrefixCache, Short
from ttkern.engine.runner_protocol import PrefillStep
from ttkern.engine.sequence import Sequence
from ttkern.engine.snapshot_store import Snapshot

LOOK_AHEAD = 64  # waiting requests that are compared with the one admitted


@dataclass
class ReuseStats:
    """Counters, in tokens of admitted prompts unless said; each prompt counts once, however often it is preempted.

    queries     of prompts that were looked up
    kv_hits     whose KV blocks were known; state_hits: up to the newest state inside; hits: skipped
    short       prompts by the reason why no more was skipped
    corrupt     snapshots whose bytes had changed
    inexact     prompts that resumed from blocks or a state that a cold prefill would have made differently
    """

    queries: int = 0
    kv_hits: int = 0
    state_hits: int = 0
    hits: int = 0
    corrupt: int = 0
    inexact: int = 0
    short: dict[Short, int] = field(default_factory=dict)


class Reuse:
    """Rules over one cache; `everywhere` keeps a state at every border, which is what the rules are compared with."""

    def __init__(self, cache: PrefixCache, *, enabled: bool, everywhere: bool = False) -> None:
        self.cache, self.enabled, self.everywhere = cache, enabled, everywhere
        self.stats = ReuseStats()

    def match(self, sequence: Sequence) -> Match:
        """What is known of its tokens. A prompt whose own tokens are to be scored is computed whole."""
        if not self.enabled or sequence.prompt_logprobs is not None:
            return NOTHING
        return self.cache.match(sequence.words)

    def begin(self, sequence: Sequence, match: Match, waiting: Iterable[Sequence]) -> None:
        """It is admitted, and resumes from a match."""
        self.cache.acquire(sequence, match)
        sequence.exact, sequence.publishes = match.exact, self.enabled
        sequence.verified = match.snapshot is None or match.snapshot.place < self.cache.store.num_device
        sequence.save_at = {}
        if not self.enabled:
            return
        if not sequence.looked_up:
            sequence.looked_up, sequence.num_cached_tokens = True, match.resume_at
            self._count(sequence, match)
        chunk, length = self.cache.chunk_tokens, len(sequence.token_ids)
        self._want(sequence, length // chunk * chunk, 1)
        self._want(sequence, min(match.kv_hit, length - 1) // chunk * chunk, 2)
        for other in islice(waiting, LOOK_AHEAD):
            self.expect(sequence, other)

    def expect(self, sequence: Sequence, other: Sequence) -> None:
        """`other` waits while `sequence` prefills: keep the state that it can resume from."""
        if self.enabled and other.prompt_logprobs is None:
            shared = common_prefix(sequence.words, other.words)
            usable = min(shared, len(sequence.words), len(other.words) - 1)
            self._want(sequence, usable // self.cache.chunk_tokens * self.cache.chunk_tokens, 2)

    def _want(self, sequence: Sequence, num_tokens: int, ways: int) -> None:
        if num_tokens > len(sequence.nodes) * self.cache.block_size:
            sequence.save_at[num_tokens] = max(ways, sequence.save_at.get(num_tokens, 0))

    def place_after(self, sequence: Sequence, step: PrefillStep) -> int | None:
        """Where the state after a prefill step is to be kept, if it is."""
        end = step.end
        if not self.enabled or end % self.cache.chunk_tokens:
            return None
        ways = sequence.save_at.get(end, 0)
        known = sequence.nodes[end // self.cache.block_size - 1 :][:1]
        if known and known[0].snapshot is not None:
            return None
        parent = self.cache.snapshot_above(sequence, end)
        spare = not ways and not self.everywhere
        return self.cache.store.reserve(end, parent, branches=max(1, ways), spare=spare)

    def place_for_decode(self, sequence: Sequence) -> int | None:
        """Where the state after the newest token is to be kept, if it is: when the answer crosses a border."""
        end = len(sequence.token_ids)
        if not sequence.publishes or end % self.cache.chunk_tokens:
            return None
        parent = self.cache.snapshot_above(sequence, end)
        return self.cache.store.reserve(end, parent, branches=1, spare=False)

    def prefilled(self, sequence: Sequence, step: PrefillStep, place: int | None, *, last: bool) -> None:
        """A step is done: what it computed can be found, once its state is known to be good."""
        if not self.enabled:
            return
        if place is not None:
            ways = sequence.save_at.get(step.end, 1)
            sequence.unpublished.append(Snapshot(step.end, place, sequence.exact, branches=ways))
        sequence.verified = sequence.verified or last
        if not sequence.verified:
            return
        self.cache.restored(sequence)
        if sequence.exact:  # up to the last chunk border: what follows is a tail
            chunks = step.end // self.cache.chunk_tokens * self.cache.chunk_tokens
            self.cache.publish(sequence, chunks, exact=True, may_swap=True)
        self.cache.publish(sequence, step.end, exact=False, may_swap=True)
        self._hang(sequence)

    def decoded(self, sequence: Sequence, place: int | None) -> None:
        """Its newest token's KV is written, and the state after it lies in `place` if one was given."""
        written = len(sequence.token_ids)
        if written % self.cache.block_size == 0:
            self.cache.publish(sequence, written, exact=False, may_swap=False)
        if place is not None:
            sequence.unpublished.append(Snapshot(written, place, exact=False))
            self._hang(sequence)

    def _hang(self, sequence: Sequence) -> None:
        for snapshot in sequence.unpublished:
            self.cache.add_snapshot(sequence, snapshot)
        sequence.unpublished.clear()

    def give_up(self, place: int | None) -> None:
        """Nothing came of a place."""
        if place is not None:
            self.cache.store.cancel(place)

    def corrupt(self, sequence: Sequence) -> None:
        """What a sequence began from was not what had been written: a miss."""
        snapshot = sequence.restoring
        assert snapshot is not None
        self.cache.restored(sequence)
        self.stats.corrupt += 1
        self.stats.hits -= sequence.num_cached_tokens
        sequence.num_cached_tokens = 0
        self.cache.drop_corrupt(snapshot)

    def end(self, sequence: Sequence) -> None:
        """It runs no more, or not now; states that were not published are given up."""
        for snapshot in sequence.unpublished:
            self.cache.store.cancel(snapshot.place)
        sequence.unpublished.clear()
        self.cache.release(sequence)

    def _count(self, sequence: Sequence, match: Match) -> None:
        stats = self.stats
        stats.queries += len(sequence.token_ids)
        stats.kv_hits += match.kv_hit
        stats.state_hits += match.state_hit
        stats.hits += match.resume_at
        stats.inexact += bool(match.resume_at) and not match.exact
        stats.short[match.short] = stats.short.get(match.short, 0) + 1


def common_prefix(one: array[int], other: array[int]) -> int:
    """Tokens that two sequences begin with."""
    length = min(len(one), len(other))
    a, b = np.frombuffer(one, np.uint32, length), np.frombuffer(other, np.uint32, length)
    differ = np.flatnonzero(a != b)
    return int(differ[0]) if differ.size else length
