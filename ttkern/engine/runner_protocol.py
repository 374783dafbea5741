"""What the engine asks of the device side, in plain Python values.

    engine (host, no tensors)                         runner (device)
    PrefillCall: one step of one prompt   -------->   working state -> on the last step into the sequence's slot
    DecodeRow per running sequence        -------->   one token for each slot
    release(slot)                         -------->   the slot's sequence is gone

Blocks 0 .. num_blocks-1 belong to sequences; what the runner needs as scratch it keeps beyond them. One sequence
prefills at a time: between the first and the last step of A no step of B, though other slots may decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Path = Literal["traced_chunk", "traced_bucket", "masked_bucket"]


@dataclass(frozen=True)
class PrefillStep:
    """Tokens [start, start + length) of a prompt in one call.

    bucket is the length that the device computes: `length`, or more on the masked path, where the rest is padding.
    """

    path: Path
    start: int
    length: int
    bucket: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True)
class SampleSpec:
    """How to pick one token.

    temperature  0 is greedy
    top_p, top_k nucleus and candidate limits; 1.0 and 0 mean none
    seed, step   the only source of randomness; step counts the tokens that the request has produced before
    logprobs     None: none; 0: the chosen token's; N: those of the N likeliest tokens as well
    forbidden    token ids that may not be chosen now
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int
    step: int
    logprobs: int | None
    forbidden: tuple[int, ...]


@dataclass(frozen=True)
class TokenLogprob:
    """Natural logarithm of a token's probability under the model's unmodified distribution."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Sampled:
    """A token, its logprob where asked for, and the likeliest tokens in descending order."""

    token: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class PrefillCall:
    """One prefill step.

    slot             state slot and decode row of this sequence
    tokens           the step's real tokens, step.length of them
    block_table      physical block ids in order of position, covering step.end tokens; the engine's own list, which
                     grows in place: read it during the call, do not keep it
    fresh_state      the state before this step is zero (first step of a prefill that resumes nothing)
    restore_from     place of the snapshot that the state before this step is (first step of one that resumes)
    save_to          place that the state after this step goes to
    last             the prefill ends here: the state goes to `slot`
    sample           how to pick the next token after the last step; None: none is wanted
    prompt_logprobs  None: none; N: score each following prompt token, with the N likeliest
    next_token       the token after this step's last; None at the end of the prompt
    """

    slot: int
    step: PrefillStep
    tokens: Sequence[int]
    block_table: Sequence[int]
    fresh_state: bool
    last: bool
    sample: SampleSpec | None
    prompt_logprobs: int | None
    next_token: int | None
    restore_from: int | None = None
    save_to: int | None = None


class CorruptSnapshotError(Exception):
    """A snapshot's bytes in host memory are not those that were written. Nothing of its sequence may be used."""

    def __init__(self, place: int) -> None:
        super().__init__(f"the snapshot in place {place} is corrupt")
        self.place = place


@dataclass(frozen=True)
class PrefillResult:
    """sampled: the next token where one was asked for. prompt_logprobs: entry i scores the token that follows
    tokens[i]; as many as the step has tokens, one less where next_token is None."""

    sampled: Sampled | None
    prompt_logprobs: list[Sampled] | None


@dataclass(frozen=True)
class DecodeRow:
    """`token` is written at `position`, which block_table covers, and the one after it is picked.

    token: None for the one that the step before picked for this row, by the device's own argmax.
    save_to: place that the state after this token goes to.
    """

    slot: int
    token: int | None
    position: int
    block_table: Sequence[int]
    sample: SampleSpec
    save_to: int | None = None


class Runner(Protocol):
    """The device side. Sizes are fixed when it is made.

    buckets         lengths of the exact steps below a chunk, powers of two, descending
    masked_buckets  padded lengths of the masked path, descending
    num_device_snapshots, num_host_snapshots  places 0 .. for states on the device, then for states in host memory
    snapshot_bytes  of one state
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    vocab_size: int
    max_model_len: int
    chunk_tokens: int
    buckets: tuple[int, ...]
    masked_buckets: tuple[int, ...]
    num_device_snapshots: int
    num_host_snapshots: int
    snapshot_bytes: int

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """Run one step.

        What was restored from host memory is verified beside the steps that follow: the last step raises
        CorruptSnapshotError, and picks nothing, where it was not what had been written.
        """
        ...

    def move_snapshot(self, source: int, target: int) -> None:
        """Copy the state in one place to another."""
        ...

    def prefill_work(self, num_tokens: int) -> float:
        """Work of prefilling so many tokens from the beginning, in any unit: what a state after them saves."""
        ...

    def launch_decode(self, rows: Sequence[DecodeRow]) -> Callable[[], list[Sampled]]:
        """Begin one token for each row; what is returned waits for them and gives them in the rows' order.

        The rows are all slots that hold a prefilled sequence. The next step may be launched before this one's tokens
        are waited for if all of them are the argmax, without logprobs.
        """
        ...

    def release(self, slot: int) -> None:
        """The slot's sequence is gone, finished or not; called once for each use of a slot. Must not raise."""
        ...
