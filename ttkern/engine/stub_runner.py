"""A runner without a model: its state is an exact hash of every token seen, so that one wrong block or state shows.

    state      rolling hash of all tokens, per slot                        (as a recurrent state)
    KV block   at each position a hash of all tokens up to it              (as keys and values)
    next token a function of the state, of every position in the block table, and where sampled of (seed, step)

`expected_tokens` computes the same answer from the tokens alone, without blocks or slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ttkern.engine.runner_protocol import (
    CorruptSnapshotError,
    DecodeRow,
    PrefillCall,
    PrefillResult,
    PrefillStep,
    Sampled,
    SampleSpec,
    TokenLogprob,
)

_WORD = 2**64 - 1
_EMPTY_STATE = 0x243F6A8885A308D3


class RunnerMisuse(AssertionError):
    """A call that breaks the protocol of `runner_protocol`."""


class TokenHash:
    """What the stub knows of a sequence, from its tokens alone."""

    def __init__(self) -> None:
        self.state = _EMPTY_STATE
        self.attention = 0  # over all positions
        self.num_tokens = 0

    def add(self, token: int) -> None:
        self.state = next_state(self.state, token)
        self.attention = (self.attention + self.state * (2 * self.num_tokens + 1)) & _WORD
        self.num_tokens += 1


def next_state(state: int, token: int) -> int:
    """The rolling hash one token further."""
    state = ((state ^ (token + 1)) * 0x9E3779B97F4A7C15) & _WORD
    return state ^ (state >> 29)


def pick(state: int, attention: int, spec: SampleSpec, vocab_size: int) -> Sampled:
    """The stub's next token. Logprobs are made up: negative, descending, the chosen token first."""
    digest = next_state(state ^ attention, 0)
    if spec.temperature > 0:
        digest = next_state(next_state(digest, spec.seed & _WORD), spec.step)
    token = (digest >> 16) % vocab_size
    while token in spec.forbidden:
        token = (token + 1) % vocab_size
    if spec.logprobs is None:
        return Sampled(token, None, ())
    return _scored(token, digest, spec.logprobs, vocab_size)


def _scored(token: int, digest: int, top: int, vocab_size: int) -> Sampled:
    logprob = -1.0 - (digest % 1000) / 1000
    ranked = (TokenLogprob((token + rank) % vocab_size, logprob - rank) for rank in range(min(top, vocab_size)))
    return Sampled(token, logprob, tuple(ranked))


def expected_tokens(
    prompt: Sequence[int],
    num_tokens: int,
    vocab_size: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    forbidden: Callable[[int], tuple[int, ...]] = lambda step: (),
) -> list[int]:
    """The first `num_tokens` tokens that the stub answers to `prompt`; forbidden: step -> token ids."""
    seen = TokenHash()
    for token in prompt:
        seen.add(token)
    output: list[int] = []
    for step in range(num_tokens):
        spec = SampleSpec(temperature, 1.0, 0, seed, step, None, forbidden(step))
        output.append(pick(seen.state, seen.attention, spec, vocab_size).token)
        seen.add(output[-1])
    return output


class StubRunner:
    """Implements `Runner`, and raises RunnerMisuse where the protocol is broken.

    Nothing is wiped: a slot or a block taken over without being written gives what its last owner left.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 512,
        num_blocks: int = 512,
        block_size: int = 64,
        max_num_seqs: int = 8,
        max_model_len: int = 4096,
        chunk_tokens: int = 512,
        buckets: tuple[int, ...] = (256, 128),
        masked_buckets: tuple[int, ...] = (128, 64, 32),
        num_device_snapshots: int = 0,
        num_host_snapshots: int = 0,
    ) -> None:
        self.vocab_size = vocab_size
        self.num_blocks, self.block_size = num_blocks, block_size
        self.max_num_seqs, self.max_model_len = max_num_seqs, max_model_len
        self.chunk_tokens, self.buckets, self.masked_buckets = chunk_tokens, buckets, masked_buckets
        self.num_device_snapshots, self.num_host_snapshots = num_device_snapshots, num_host_snapshots
        self.snapshot_bytes = 1
        self._places: dict[int, tuple[int, int]] = {}  # place -> (state, tokens it has seen)
        self.corrupt_places: set[int] = set()  # in host memory, whose bytes have changed
        self._restored_corrupt: int | None = None
        self._kv = np.zeros((num_blocks, block_size), dtype=np.uint64)
        self._weights = np.arange(num_blocks * block_size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._state = [0] * max_num_seqs
        self._prefill_state = 0
        self._prefilling: int | None = None  # slot
        self._picked: dict[int, int] = {}  # slot -> the token that the last decode step picked
        self._num_tokens: dict[int, int] = {}  # slot in use -> tokens it has seen

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """One step."""
        step = call.step
        self._check_prefill(call)
        if call.fresh_state:
            self._prefill_state = _EMPTY_STATE
        if call.restore_from is not None:
            self._prefill_state = self._places[call.restore_from][0]
            if call.restore_from in self.corrupt_places:
                self._prefill_state ^= 1
                self._restored_corrupt = call.restore_from
        self._prefilling = call.slot
        values, states = [], self._prefill_state
        for token in call.tokens:
            states = next_state(states, token)
            values.append(states)
        self._prefill_state = states
        self._write(call.block_table, step.start, values)
        self._num_tokens[call.slot] = step.end
        self._save(call.save_to, self._prefill_state, step.end)
        sampled = None
        if call.last:
            if self._restored_corrupt is not None:
                place, self._restored_corrupt = self._restored_corrupt, None
                raise CorruptSnapshotError(place)
            self._state[call.slot] = self._prefill_state
            self._prefilling = None
            if call.sample is not None:
                sampled = self._next(call.slot, call.block_table, call.sample)
        scores = None
        if call.prompt_logprobs is not None:
            following = [*call.tokens[1:], *([] if call.next_token is None else [call.next_token])]
            scores = [
                _scored(token, value, call.prompt_logprobs, self.vocab_size)
                for token, value in zip(following, values, strict=False)
            ]
        return PrefillResult(sampled, scores)

    def launch_decode(self, rows: Sequence[DecodeRow]) -> Callable[[], list[Sampled]]:
        """Decode now; the tokens can be had later."""
        sampled = self.decode(rows)
        return lambda: sampled

    def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled]:
        """One token per row."""
        slots = [row.slot for row in rows]
        holding = set(self._num_tokens) - {self._prefilling}
        if len(set(slots)) != len(slots) or set(slots) != holding:
            raise RunnerMisuse(f"decode of slots {slots}; prefilled sequences are in {sorted(holding)}")
        sampled = []
        for row in rows:
            seen = self._num_tokens[row.slot]
            if row.position != seen:
                raise RunnerMisuse(f"slot {row.slot} has seen {seen} tokens and decodes position {row.position}")
            token = self._picked.get(row.slot, -1) if row.token is None else row.token
            self._check_tokens([token])
            self._check_table(row.block_table, row.position + 1)
            self._state[row.slot] = next_state(self._state[row.slot], token)
            self._write(row.block_table, row.position, [self._state[row.slot]])
            self._num_tokens[row.slot] = seen + 1
            self._save(row.save_to, self._state[row.slot], seen + 1)
            sampled.append(self._next(row.slot, row.block_table, row.sample))
        self._picked = {row.slot: one.token for row, one in zip(rows, sampled, strict=True)}
        return sampled

    def move_snapshot(self, source: int, target: int) -> None:
        """Copy a state."""
        self._places[target] = self._places[source]
        self.corrupt_places.discard(target)

    def prefill_work(self, num_tokens: int) -> float:
        """Tokens."""
        return float(num_tokens)

    def _save(self, place: int | None, state: int, num_tokens: int) -> None:
        if place is None:
            return
        if not 0 <= place < self.num_device_snapshots + self.num_host_snapshots:
            raise RunnerMisuse(f"place {place} of {self.num_device_snapshots} + {self.num_host_snapshots}")
        self._places[place] = (state, num_tokens)
        self.corrupt_places.discard(place)

    def release(self, slot: int) -> None:
        """Forget who is in the slot."""
        if slot not in self._num_tokens:
            raise RunnerMisuse(f"release of slot {slot}, which holds no sequence")
        del self._num_tokens[slot]
        if self._prefilling == slot:
            self._prefilling = self._restored_corrupt = None

    def _check_prefill(self, call: PrefillCall) -> None:
        step = call.step
        if self._prefilling not in (None, call.slot):
            raise RunnerMisuse(f"prefill of slot {call.slot} inside that of slot {self._prefilling}")
        if not 0 <= call.slot < self.max_num_seqs:
            raise RunnerMisuse(f"slot {call.slot} of {self.max_num_seqs}")
        first = self._prefilling is None
        if first and call.slot in self._num_tokens:
            raise RunnerMisuse(f"slot {call.slot} begins a sequence and holds another")
        due = self._num_tokens.get(call.slot, 0)
        if first and call.restore_from is not None:
            if call.restore_from not in self._places:
                raise RunnerMisuse(f"place {call.restore_from} has never been saved to")
            due = self._places[call.restore_from][1]
        if (call.fresh_state or call.restore_from is not None) != first or step.start != due:
            raise RunnerMisuse(f"slot {call.slot} is at token {due}; the step begins at {step.start}")
        if step.start % min(self.buckets, default=self.chunk_tokens):
            raise RunnerMisuse(f"a step begins at {step.start}, off the grid of the smallest exact bucket")
        if not self._has(step):
            raise RunnerMisuse(f"there is no such step: {step}")
        if len(call.tokens) != step.length or step.end > self.max_model_len:
            raise RunnerMisuse(f"{len(call.tokens)} tokens for {step}, of at most {self.max_model_len}")
        self._check_tokens(call.tokens)
        self._check_table(call.block_table, step.end)

    def _has(self, step: PrefillStep) -> bool:
        if step.path == "masked_bucket":
            return step.bucket in self.masked_buckets and 1 <= step.length <= step.bucket
        return step.bucket in (self.chunk_tokens, *self.buckets) and step.length == step.bucket

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise RunnerMisuse(f"token ids {min(tokens)} to {max(tokens)}, of a vocabulary of {self.vocab_size}")

    def _check_table(self, block_table: Sequence[int], num_tokens: int) -> None:
        if len(block_table) * self.block_size < num_tokens:
            raise RunnerMisuse(f"{len(block_table)} blocks of {self.block_size} do not cover {num_tokens} tokens")
        if not 0 <= block_table[-1] < self.num_blocks:
            raise RunnerMisuse(f"block {block_table[-1]} of {self.num_blocks}")

    def _write(self, block_table: Sequence[int], start: int, values: list[int]) -> None:
        positions = np.arange(start, start + len(values))
        blocks = np.asarray(block_table)[positions // self.block_size]
        self._kv[blocks, positions % self.block_size] = np.array(values, dtype=np.uint64)

    def _next(self, slot: int, block_table: Sequence[int], spec: SampleSpec) -> Sampled:
        count = self._num_tokens[slot]
        read = self._kv[np.asarray(block_table)].reshape(-1)[:count]
        attention = int((read * self._weights[:count]).sum(dtype=np.uint64))
        return pick(self._state[slot], attention, spec, self.vocab_size)
