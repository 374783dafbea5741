"""What an engine can be told, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttkern.engine.planner import CostTable
from ttkern.engine.reuse import ReuseStats
from ttkern.engine.runner_protocol import Runner
from ttkern.errors import TtkernError


@dataclass(frozen=True)
class EngineConfig:
    """Limits below those that the runner is laid out for, whose own hold where None is given.

    max_num_seqs   sequences that hold a slot at a time
    max_model_len  tokens of a sequence, prompt and answer
    num_blocks     KV blocks in use at a time
    chunk_tokens   longest prefill step, so the longest wait of a running stream: the runner's chunk or an exact bucket
    costs          what prefill steps cost, for the planner; None: exact buckets first
    prefix_caching keep what is computed, and skip it when it is sent again
    snapshots      which states are kept: "saving", or "lru" at every chunk border, which the former is compared with
    """

    max_num_seqs: int | None = None
    max_model_len: int | None = None
    num_blocks: int | None = None
    chunk_tokens: int | None = None
    costs: CostTable | None = None
    prefix_caching: bool = True
    snapshots: Literal["saving", "lru"] = "saving"

    def limit(self, name: str, runner: Runner) -> int:
        """The value of `name`, checked against the runner's. Raises TtkernError."""
        given, most = getattr(self, name), getattr(runner, name)
        if given is None:
            return most
        if not 1 <= given <= most:
            raise TtkernError(f"{name} is {given}; the runner is laid out for 1 to {most}")
        return given


@dataclass(frozen=True)
class EngineStats:
    """Gauges, and counters that only grow (num_*_tokens, num_preemptions).

    num_prefilled_tokens counts what was computed: padding not, tokens prefilled again after a preemption each time.
    num_used_blocks are those that sequences read; num_idle_blocks are kept for later, and given up when needed.
    """

    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_blocks: int
    num_prefilled_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_idle_blocks: int
    num_snapshots: int
    num_evicted_snapshots: int
    reuse: ReuseStats

    @property
    def kv_cache_usage(self) -> float:
        """Used part of the KV pool, 0 to 1."""
        return self.num_used_blocks / self.num_blocks
