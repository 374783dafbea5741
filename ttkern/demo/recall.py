"""How well a model recalls: by the distance of the fact, by where it lies when a request resumes, and under defects."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from scipy.stats import binomtest

from ttkern.demo.questions import CHUNK, Question, make_question
from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.request import RequestOutput, SamplingParams
from ttkern.engine.runner import DeviceRunner
from ttkern.evidence.defects import Defective
from ttkern.model.tokenizer import Tokenizer

Track = Callable[[Iterable[Any], str], Iterable[Any]]
EARLIER_TURNS = 3


@dataclass(frozen=True)
class Answered:
    """One question, asked cold and through a prefix hit.

    place      where the fact lay for the warm request: "cached prefix" or "tail"
    margin     nats between the best and the second token where the value is due, cold; None unless right
    cached     prompt tokens that the warm request skipped
    same       cold and warm answers are equal, token for token
    """

    distance: int
    turns: int
    place: str
    cold: bool
    warm: bool
    margin: float | None
    cached: int
    same: bool


@dataclass(frozen=True)
class Rate:
    """Right answers of so many, and the Wilson interval at 95%."""

    right: int
    total: int

    @property
    def rate(self) -> float:
        return self.right / self.total if self.total else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        found = binomtest(self.right, self.total).proportion_ci(0.95, method="wilson")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.0%} ({low:.0%} to {high:.0%})"


def questions(path: Path, chunks: int, each: int, seed: int) -> list[Question]:
    """`each` of 1 to `chunks` chunks of 128 tokens; of each distance every second is asked three turns later.

    path  of a tokenizer.json
    """
    rng, tokenizer = random.Random(f"recall-{seed}"), tokenizers.Tokenizer.from_file(str(path))
    return [
        make_question(rng, tokenizer, CHUNK * distance, EARLIER_TURNS * (n % 2) if distance > 1 else 0)
        for distance in range(1, chunks + 1)
        for n in range(each)
    ]


def ask(runner: DeviceRunner, tokenizer: Tokenizer, asked: Sequence[Question], track: Track) -> list[Answered]:
    """Every question without a cache, and again after the conversation so far has been sent."""
    cold = Engine(runner, tokenizer, EngineConfig(prefix_caching=False))
    warm = Engine(runner, tokenizer, EngineConfig())
    rows = []
    size = runner.max_num_seqs
    for start in track(range(0, len(asked), size), "asking"):
        part = asked[start : start + size]
        params = [_greedy(len(one.reply) + 4) for one in part]
        fresh = cold.generate([one.prompt for one in part], params)
        warm.generate([one.history for one in part], SamplingParams(temperature=0, max_tokens=1))
        again = warm.generate([one.prompt for one in part], params)
        rows += [_answered(*row) for row in zip(part, fresh, again, strict=True)]
    return rows


def _answered(one: Question, cold: RequestOutput, warm: RequestOutput) -> Answered:
    right = is_right(one, cold)
    margin, before = None, one.reply[: one.value]
    if right and cold.logprobs is not None and cold.token_ids[: one.value] == before:
        best, second = cold.logprobs[one.value].top[:2]
        margin = best.logprob - second.logprob
    return Answered(
        distance=-(-one.distance // CHUNK),
        turns=one.turns,
        place="cached prefix" if one.fact < warm.num_cached_tokens else "tail",
        cold=right,
        warm=is_right(one, warm),
        margin=margin,
        cached=warm.num_cached_tokens,
        same=cold.token_ids == warm.token_ids,
    )


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, logprobs=2, max_tokens=max_tokens)


def is_right(one: Question, output: RequestOutput) -> bool:
    """Whether an answer says the value."""
    return one.word in output.text.split()


def sensitivity(runner: DeviceRunner, tokenizer: Tokenizer, each: int, seed: int, track: Track) -> dict[str, Rate]:
    """Recall through a prefix hit, undamaged and under each defect, of facts that lie in the last cached chunk."""
    rng, plain = random.Random(f"sensitivity-{seed}"), tokenizers.Tokenizer.from_file(str(tokenizer.path))
    asked: list[Question] = []
    while len(asked) < each:
        one = make_question(rng, plain, rng.randint(CHUNK // 2, 2 * CHUNK))
        resumed = (len(one.history) - 1) // CHUNK * CHUNK
        if resumed >= 2 * CHUNK and resumed - CHUNK <= one.fact < resumed:
            asked.append(one)
    defects: dict[str, dict[str, Any]] = {"undamaged": {}}
    for layer in range(runner.decoder.config.num_gdn_layers):
        defects[f"GDN layer {layer}'s recurrent state zero at the resume"] = {"lost_layer": layer}
    defects["the KV block that holds the fact is stale"] = {"stale_block": True}
    defects["the snapshot of the chunk before"] = {"early": True}
    found, faulty = {}, Defective(runner)
    for name, defect in defects.items():
        right = 0
        for one in track(asked, name):
            faulty.heal()
            engine = Engine(faulty, tokenizer, EngineConfig())
            engine.generate([one.history], SamplingParams(temperature=0, max_tokens=1))
            for field, value in defect.items():
                setattr(faulty, field, one.fact // runner.block_size if field == "stale_block" else value)
            (output,) = engine.generate([one.prompt], _greedy(len(one.reply)))
            if defect and not faulty.planted:
                raise RuntimeError(f"{name}: nothing was planted")
            right += is_right(one, output)
        found[name] = Rate(right, len(asked))
    return found


def rate(rows: Iterable[Answered], warm: bool) -> Rate:
    """Of cold or warm answers."""
    right = [row.warm if warm else row.cold for row in rows]
    return Rate(sum(right), len(right))


def median_margin(rows: Iterable[Answered]) -> float:
    """Of right answers, in nats."""
    return float(np.median([row.margin for row in rows if row.margin is not None]))
