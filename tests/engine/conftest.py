"""Tokenizers and a runner that says what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ttkern.engine.runner_protocol import DecodeRow, PrefillCall, PrefillResult, Sampled, SampleSpec
from ttkern.engine.stub_runner import StubRunner

CORPUS = ["the quick brown fox jumps over the lazy dog", "hello world, how are you today?", "你好 世界 🎉🎉 naïve café"]


class LetterTokenizer:
    """One letter per token; 0 ends the answer and is special."""

    eos_token_ids = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") + 1 for letter in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(ord("a") + (token - 1) % 26) for token in ids if token or not skip_special_tokens)


class BytePairTokenizer:
    """The real thing, byte level, with few merges: most characters outside ASCII take several tokens."""

    def __init__(self) -> None:
        self.raw = tokenizers.Tokenizer(models.BPE())
        self.raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.raw.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        self.raw.train_from_iterator(CORPUS, trainer)
        self.eos_token_ids = frozenset({self.raw.token_to_id("<|im_end|>")})
        self.vocab_size = self.raw.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.raw.encode(text).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.raw.decode(ids, skip_special_tokens=skip_special_tokens)


class ScriptRunner(StubRunner):
    """Says `script` and calls `on_call` before each call, which may raise."""

    def __init__(self, script: Iterable[int] | None = None, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.script = None if script is None else list(script)
        self.calls: list[tuple[str, Any]] = []
        self.released: list[int] = []
        self.on_call: Callable[[str, Any], None] = lambda name, call: None

    def prefill(self, call: PrefillCall) -> PrefillResult:
        result = super().prefill(call)
        self.calls.append(("prefill", call))
        self.on_call("prefill", call)
        return PrefillResult(self._say(call.sample, result.sampled), result.prompt_logprobs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled]:
        sampled = super().decode(rows)
        self.calls.append(("decode", list(rows)))
        self.on_call("decode", rows)
        return [self._say(row.sample, one) for row, one in zip(rows, sampled, strict=True)]

    def release(self, slot: int) -> None:
        super().release(slot)
        self.released.append(slot)

    def _say(self, spec: SampleSpec | None, sampled: Sampled | None) -> Any:
        if self.script is None or spec is None or sampled is None:
            return sampled
        return Sampled(self.script[spec.step % len(self.script)], sampled.logprob, sampled.top)


@pytest.fixture(scope="session")
def letters() -> LetterTokenizer:
    return LetterTokenizer()


@pytest.fixture(scope="session")
def byte_pairs() -> BytePairTokenizer:
    return BytePairTokenizer()


@pytest.fixture(scope="session")
def script_runner() -> type[ScriptRunner]:
    return ScriptRunner
