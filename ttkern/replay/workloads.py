"""Workloads that look like agents: `python -m ttkern.replay.workloads traces` writes the ones that are kept.

All lengths are in chunks, so that one shape can be had at any scale.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

from ttkern.replay.trace import TraceRequest, write_trace

# A production request of 93,739 tokens, 98.3% of it cached, in chunks of 2,048: 45 chunks and 1,579 tokens.
PRODUCTION_CHUNKS, PRODUCTION_TAIL = 45, 1579 / 2048


def shared_head(
    *, chunk: int = 256, agents: int = 8, head: int = 24, own: int = 2, output: int = 16
) -> list[TraceRequest]:
    """Agents that begin together with one head and go on each for itself."""
    return [
        TraceRequest(
            f"agent-{i}", 0, 0.0, (("head", 0, head * chunk), (f"agent-{i}", 0, own * chunk)), output_tokens=output
        )
        for i in range(agents)
    ]


def turns(
    *, chunk: int = 256, agents: int = 8, count: int = 3, per_turn: int = 8, output: int = 32, seed: int = 0
) -> list[TraceRequest]:
    """Agents that send their whole history again each turn; one adds `per_turn` chunks, the last answer included."""
    rng = random.Random(seed)
    requests = []
    for turn in range(count):
        for i in range(agents):
            tokens = per_turn * chunk - (output if turn else 0)
            think = round(rng.uniform(0.5, 8.0), 2) if turn else 0.0
            part = (f"agent-{i}/turn-{turn}", 0, tokens)
            requests.append(TraceRequest(f"agent-{i}", turn, think, (part,), output))
    return requests


def tree(
    *,
    chunk: int = 256,
    levels: int = 3,
    forks: int = 3,
    edge: int = 6,
    output: int = 16,
    gap: float = 3.0,
    seed: int = 0,
) -> list[TraceRequest]:
    """One request for each leaf of a tree of prompts, in random order, one after the other."""
    leaves: list[list[int]] = [[]]
    for _ in range(levels):
        leaves = [[*path, way] for path in leaves for way in range(forks)]
    random.Random(seed).shuffle(leaves)
    requests = []
    for number, path in enumerate(leaves):
        names = ["tree/" + "".join(map(str, path[: depth + 1])) for depth in range(levels)]
        parts = tuple((name, 0, edge * chunk) for name in names)
        requests.append(TraceRequest(f"leaf-{''.join(map(str, path))}", 0, number * gap, parts, output))
    return requests


def burst(*, chunk: int, agents: int = 8, head: int = PRODUCTION_CHUNKS, output: int = 16) -> list[TraceRequest]:
    """Synchronised requests shaped like production's: a shared head, and a tail of 77% of a chunk each.

    A first session sends the head alone, so that the others find it.
    """
    tail = round(PRODUCTION_TAIL * chunk)
    warm = TraceRequest("warm", 0, 0.0, (("head", 0, head * chunk), ("warm", 0, 1)), 1)
    return [warm, *agents_of_burst(chunk, agents, head, tail, output)]


def agents_of_burst(chunk: int, agents: int, head: int, tail: int, output: int) -> list[TraceRequest]:
    """The synchronised ones."""
    return [
        TraceRequest(f"agent-{i}", 0, 0.0, (("head", 0, head * chunk), (f"agent-{i}", 0, tail)), output)
        for i in range(agents)
    ]


KEPT: dict[str, Callable[[], list[TraceRequest]]] = {"shared-head": shared_head, "turns": turns, "tree": tree}


if __name__ == "__main__":
    for name, make in KEPT.items():
        write_trace(Path(sys.argv[1]) / f"{name}.jsonl", make())
