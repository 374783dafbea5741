"""How often `ttkern bench` is right: a variant against itself, and against itself with 10% of its time added.

    python -m tests.bench.bench_verdicts

20 runs of each, with and without another process that loads one core. Exit code 1 if an arm is called faster or slower
than itself more than once in 20, or the planted slowdown is missed more than twice in 20.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ttkern.bench.pairs import Outcome, compare
from ttkern.bench.run import find
from ttkern.bench.timing import Timer
from ttkern.targets import open_target

RUNS, PAIRS, SLOWDOWN = 20, 300, 0.10
SPIN = "while True: pass"


def slowed(timer: Timer) -> Timer:
    """The same variant, which then waits for a tenth of its own median time."""
    own = sorted(timer.sample(timer.calls) for _ in range(50))[25]
    right = timer.op.variants[timer.variant]

    def variant(ttnn: Any, **tensors: Any) -> tuple[Any, ...]:
        begin = time.perf_counter()
        outputs = right(ttnn, **tensors)
        # A tenth of what this very call took, so that it is slower by a tenth however slow the machine is just now.
        end = time.perf_counter() + SLOWDOWN * min(time.perf_counter() - begin, 10 * own)
        while time.perf_counter() < end:
            pass
        return outputs

    op = replace(timer.op, variants={timer.variant: variant})
    return Timer(timer.target, op, timer.variant, timer.case)


def verdicts(console: Console, busy: str) -> list[tuple[str, str, int, int]]:
    """Rows: what was compared, what was to be found, how often it was."""
    op, case = find("rms_norm", "small")
    first, same = (Timer(open_target("emulated"), op, "ttnn", case) for _ in range(2))
    slow = slowed(first)
    right = {"itself": 0, "10% slower": 0}
    for run in track(range(RUNS), f"20 runs, {busy}", console=console):
        arms: dict[str, list[float]] = {"first": [], "itself": [], "10% slower": []}
        timers = {"first": first, "itself": same, "10% slower": slow}
        names = list(timers)
        orders = random.Random(run)
        for _ in range(PAIRS):
            for name in orders.sample(names, len(names)):
                arms[name].append(timers[name].sample(first.calls))
        right["itself"] += compare(arms["first"], arms["itself"]).outcome in (Outcome.SAME, Outcome.UNCLEAR)
        right["10% slower"] += compare(arms["first"], arms["10% slower"]).outcome is Outcome.SLOWER
    return [(busy, name, found, RUNS - (1 if name == "itself" else 2)) for name, found in right.items()]


def main() -> int:
    """Measure and print; the exit code."""
    torch.set_num_threads(1)
    console = Console(stderr=True)
    rows = verdicts(console, "machine as it is")
    spinning = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        rows += verdicts(console, "another process loads a core")
    finally:
        spinning.kill()
        spinning.wait()
    table = Table(title=f"right verdicts of {RUNS} runs of {PAIRS} pairs, 99% intervals")
    for column in ("machine", "a variant against", "right", "asked"):
        table.add_column(column)
    for busy, name, found, asked in rows:
        table.add_row(busy, name, f"{found} of {RUNS}", f"{asked}" if found >= asked else f"{asked}: MISSED")
    Console().print(table)
    return int(any(found < asked for *_, found, asked in rows))


if __name__ == "__main__":
    sys.exit(main())
