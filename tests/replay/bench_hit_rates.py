"""Tokens skipped on the kept traces, at shrinking snapshot budgets: kept by what they save, against every border + LRU.

    python -m tests.replay.bench_hit_rates

The budget is a part of what keeping a state at every chunk border would need. Time is virtual: no model runs.
Exit code 1 if ours is worse at the whole budget, or less than 1.3 times as good at a sixteenth, on any of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import track
from rich.table import Table

from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.stub_runner import StubRunner
from ttkern.replay.run import VirtualClock, replay
from ttkern.replay.trace import TraceRequest, read_trace

TRACES = Path(__file__).parents[2] / "traces"
BUDGETS = {"1": 1.0, "1/4": 0.25, "1/16": 0.0625}
CHUNK, MARGIN = 256, 1.3


class Words:
    """The engine's text is of no interest here."""

    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [1]

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return "x" * len(ids)


def skipped(requests: list[TraceRequest], places: int, policy: Literal["saving", "lru"]) -> tuple[int, int, int]:
    """Tokens skipped, tokens asked, and states that were kept at once."""
    runner = StubRunner(
        vocab_size=512,
        num_blocks=1 << 14,
        max_num_seqs=8,
        max_model_len=1 << 14,
        chunk_tokens=CHUNK,
        buckets=(128,),
        masked_buckets=(128, 64, 32),
        num_host_snapshots=places,
    )
    engine = Engine(runner, Words(), EngineConfig(snapshots=policy))
    rows = replay(engine, requests, VirtualClock())
    engine.check_integrity()
    return sum(r.cached_tokens for r in rows), sum(r.prompt_tokens for r in rows), engine.stats().num_snapshots


def measure() -> list[tuple[str, str, int, int, int, int]]:
    """Trace, budget, places, tokens asked, tokens skipped by ours and by LRU."""
    found = []
    for path in track(sorted(TRACES.glob("*.jsonl")), "replaying", console=Console(stderr=True)):
        requests = read_trace(path)
        everything = skipped(requests, 4096, "lru")[2]
        for name, part in BUDGETS.items():
            places = max(1, int(everything * part))
            ours, asked, _ = skipped(requests, places, "saving")
            lru, _, _ = skipped(requests, places, "lru")
            found.append((path.stem, name, places, asked, ours, lru))
    return found


def good_enough(budget: str, ours: int, lru: int) -> bool:
    """What is asked at each budget."""
    return ours >= (MARGIN if budget == "1/16" else 1.0 if budget == "1" else 0.0) * lru


def main() -> int:
    """Measure and print; the exit code."""
    table = Table(title="prompt tokens whose prefill is skipped")
    for column in ("trace", "budget", "states", "asked", "by saving", "every border + LRU", "ratio"):
        table.add_column(column, justify="left" if column == "trace" else "right")
    rows = measure()
    for trace, budget, places, asked, ours, lru in rows:
        ratio = f"{ours / lru:.2f}" if lru else "inf"
        percent = [f"{100 * n / asked:.1f}%" for n in (ours, lru)]
        table.add_row(trace, budget, str(places), f"{asked:,}", *percent, ratio)
    Console().print(table)
    return int(not all(good_enough(budget, ours, lru) for _, budget, _, _, ours, lru in rows))


if __name__ == "__main__":
    sys.exit(main())
