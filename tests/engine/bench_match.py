"""What finding a prompt costs: a 94k-token prompt, in a cache of 100k tokens and in one of a million.

    python -m tests.engine.bench_match

Interleaved in one process. Exit code 1 if the larger cache takes more than 1.2 times as long.
"""

from __future__ import annotations

import random
import sys
import time
from array import array

import numpy as np

from ttkern.engine.kv_pool import KVPool
from ttkern.engine.prefix_cache import PrefixCache
from ttkern.engine.request import Request, SamplingParams
from ttkern.engine.sequence import Sequence
from ttkern.engine.snapshot_store import Snapshot, SnapshotStore

BLOCK, CHUNK, PROMPT, ROUNDS, BOUND = 64, 2048, 93_739, 60, 1.2


class Words:
    """The engine's text is of no interest here."""

    def decode(self, ids: object, skip_special_tokens: bool = True) -> str:
        return ""


def filled(prompt: list[int], tokens: int) -> PrefixCache:
    """A cache of so many tokens, the prompt's first 45 chunks and a state after them included."""
    pool = KVPool(tokens // BLOCK + 64, BLOCK)
    store = SnapshotStore(0, 4, float, lambda source, target: None)
    cache = PrefixCache(pool, CHUNK, store)
    rng = random.Random(1)
    texts = [prompt] + [rng.choices(range(1 << 17), k=PROMPT) for _ in range(max(0, tokens // PROMPT - 1))]
    for number, text in enumerate(texts):
        sequence = Sequence(
            Request(str(number), text, SamplingParams()), seed=0, token_limit=1, eos=(), tokenizer=Words()
        )
        sequence.publishes = True
        sequence.block_table += cache.allocate(pool.blocks_for(len(text)))
        cache.publish(sequence, len(text), exact=True, may_swap=True)
        if number == 0:
            place = store.reserve(45 * CHUNK, None, branches=1, spare=False)
            assert place is not None
            cache.add_snapshot(sequence, Snapshot(45 * CHUNK, place, True))
        cache.release(sequence)
    return cache


def main() -> int:
    """Measure and print; the exit code."""
    prompt = random.Random(0).choices(range(1 << 17), k=PROMPT)
    caches = {tokens: filled(prompt, tokens) for tokens in (100_000, 1_000_000)}
    times: dict[int, list[float]] = {tokens: [] for tokens in caches}
    for _ in range(ROUNDS):
        for tokens, cache in caches.items():
            begin = time.perf_counter()
            match = cache.match(array("I", prompt))
            times[tokens].append((time.perf_counter() - begin) * 1e3)
            assert match.resume_at == 45 * CHUNK
    small, large = (np.array(spent) for spent in times.values())
    ratio = float(np.median(large / small))
    took = f"{np.median(small):.2f} ms among 100k, {np.median(large):.2f} ms among a million"
    print(f"{PROMPT:,} tokens found in {took}: {ratio:.2f}x")
    return int(ratio > BOUND)


if __name__ == "__main__":
    sys.exit(main())
