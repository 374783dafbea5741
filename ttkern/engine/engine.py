"""The engine: requests in, one step at a time, outputs out."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from collections.abc import Sequence as Ids
from functools import partial
from typing import Protocol

from ttkern.engine.config import EngineConfig, EngineStats
from ttkern.engine.decoding import Decoding
from ttkern.engine.kv_pool import KVPool
from ttkern.engine.planner import plan
from ttkern.engine.prefix_cache import PrefixCache
from ttkern.engine.request import (
    FinishReason,
    Request,
    RequestError,
    RequestOutput,
    SamplingParams,
    merge_outputs,
)
from ttkern.engine.reuse import Reuse
from ttkern.engine.runner_protocol import CorruptSnapshotError, PrefillCall, Runner, Sampled
from ttkern.engine.scheduler import Scheduler
from ttkern.engine.sequence import Sequence
from ttkern.engine.snapshot_store import SnapshotStore
from ttkern.errors import TtkernError

logger = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """What the engine asks of a tokenizer."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Ids[int], skip_special_tokens: bool = True) -> str: ...


class Engine:
    """Continuous batching over one runner. Not thread-safe: one thread owns it.

    A step decodes one token for every running sequence, then does one prefill step of one prompt; so a running stream
    waits for at most one prefill step between two of its tokens.
    """

    def __init__(self, runner: Runner, tokenizer: Tokenizer, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.runner = runner
        self.tokenizer = tokenizer
        self.max_num_seqs = self.config.limit("max_num_seqs", runner)
        self.max_model_len = self.config.limit("max_model_len", runner)
        self.chunk_tokens = self.config.limit("chunk_tokens", runner)
        self._pool = KVPool(self.config.limit("num_blocks", runner), runner.block_size)
        caching = self.config.prefix_caching and runner.num_device_snapshots + runner.num_host_snapshots > 0
        self._store = SnapshotStore(
            runner.num_device_snapshots,
            runner.num_host_snapshots,
            runner.prefill_work,
            runner.move_snapshot,
            policy=self.config.snapshots,
        )
        self._cache = PrefixCache(self._pool, self.chunk_tokens, self._store)
        self._reuse = Reuse(self._cache, enabled=caching, everywhere=self.config.snapshots == "lru")
        self._scheduler = Scheduler(self._cache, self._reuse, self.max_num_seqs, self._planner(), runner.release)
        self._sequences: dict[str, Sequence] = {}
        self._decoding = Decoding(runner, self._scheduler, self._reuse, self.chunk_tokens)
        self._num_prefilled_tokens = 0
        self._num_generated_tokens = 0

    def _planner(self) -> partial:
        runner, chunk = self.runner, self.chunk_tokens
        if chunk not in (runner.chunk_tokens, *runner.buckets):
            raise TtkernError(
                f"chunk_tokens is {chunk}; the runner has steps of {sorted((runner.chunk_tokens, *runner.buckets))}"
            )
        buckets = tuple(bucket for bucket in runner.buckets if bucket < chunk)
        masked = tuple(bucket for bucket in runner.masked_buckets if bucket <= chunk)
        unit = min(buckets, default=chunk)
        for length in (chunk, *buckets):
            if length % unit or unit % runner.block_size:
                raise TtkernError(
                    f"a prefill step of {length} tokens does not end on a border of steps of {unit} and blocks of "
                    f"{runner.block_size} tokens"
                )
        if max(masked, default=0) < unit - 1:
            raise TtkernError(
                f"the largest masked bucket is {max(masked, default=0)}, and up to {unit - 1} tokens can be left over"
            )
        costs = self.config.costs
        return partial(plan, chunk_tokens=chunk, buckets=buckets, masked_buckets=masked, costs=costs)

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises RequestError when it could not be honoured to its end."""
        token_limit = self._check(request)
        seed = request.params.seed if request.params.seed is not None else secrets.randbits(63)
        sequence = Sequence(
            request,
            seed=seed,
            token_limit=token_limit,
            eos=tuple(self.tokenizer.eos_token_ids),
            tokenizer=self.tokenizer,
        )
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def _check(self, request: Request) -> int:
        """Most tokens that the request may produce."""
        params, prompt = request.params, request.prompt_token_ids
        if request.request_id in self._sequences:
            raise RequestError("request_id", f"request {request.request_id!r} is already being answered")
        if not prompt:
            raise RequestError("prompt", "prompt has no tokens; it must have at least 1")
        vocab_size = self.runner.vocab_size
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < vocab_size)
            raise RequestError("prompt", f"prompt has token id {wrong}; the vocabulary is 0 to {vocab_size - 1}")
        if wrong_stops := [token for token in params.stop_token_ids if token >= vocab_size]:
            raise RequestError(
                "stop_token_ids",
                f"stop_token_ids has token id {wrong_stops[0]}; the vocabulary is 0 to {vocab_size - 1}",
            )
        for field in ("logprobs", "prompt_logprobs"):
            wanted = getattr(params, field)
            if wanted is not None and wanted > vocab_size:
                raise RequestError(field, f"{field} is {wanted}; the vocabulary has {vocab_size} tokens")
        return self._token_limit(len(prompt), params)

    def _token_limit(self, prompt_tokens: int, params: SamplingParams) -> int:
        limit, what = self.max_model_len, "the limit"
        in_pool = self._pool.num_blocks * self._pool.block_size
        if in_pool < limit:  # with the pool to itself, every request runs to its end
            limit, what = in_pool, "the KV pool"
        field, least = "min_tokens", max(1, params.min_tokens)
        if params.max_tokens is not None:
            field, least = "max_tokens", params.max_tokens
        if prompt_tokens + least > limit:
            asked = (
                f"{field} is {least}" if least > 1 or params.max_tokens is not None else "the answer needs at least 1"
            )
            raise RequestError(
                "prompt" if prompt_tokens + min(1, least) > limit else field,
                f"prompt has {prompt_tokens} tokens and {asked}, together over {what} of {limit}",
                code="context_length_exceeded",
            )
        return limit - prompt_tokens if params.max_tokens is None else params.max_tokens

    def abort(self, request_id: str) -> bool:
        """Give a request up; its blocks and its slot are free on return, and no output of it follows.

        False if the engine does not hold it (any more).
        """
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        self._scheduler.remove(sequence)
        return True

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def step(self) -> list[RequestOutput]:
        """One decode of all running sequences and one prefill step; what they said, one output per request at most.

        When the runner raises, the requests it was working for end with finish_reason "abort" and the error.
        """
        outputs: list[RequestOutput] = []
        self._decode(outputs)
        self._prefill(outputs)
        return outputs

    def _decode(self, outputs: list[RequestOutput]) -> None:
        flight = self._decoding.take()
        try:
            picked = flight.collect()
        except Exception as error:
            self._decoding.give_up(flight)
            outputs += self._failed([s for s in flight.sequences if self._runs(s)], error)
            return
        for sequence, place, sampled in zip(flight.sequences, flight.places, picked, strict=True):
            if self._runs(sequence):
                self._reuse.decoded(sequence, place)
                outputs.append(self._take(sequence, sampled))
            else:
                self._reuse.give_up(place)
        self._decoding.keep_going()

    def _runs(self, sequence: Sequence) -> bool:
        """Whether it has not ended, by itself or by a client that left, since its step was launched."""
        return sequence.slot is not None and self._sequences.get(sequence.request_id) is sequence

    def _prefill(self, outputs: list[RequestOutput]) -> None:
        sequence = self._scheduler.schedule_prefill()
        if sequence is None:
            return
        place = None
        try:
            place = self._reuse.place_after(sequence, sequence.prefill_steps[sequence.num_steps_done])
            call = self._prefill_call(sequence, place)
            result = self.runner.prefill(call)
        except CorruptSnapshotError:
            self._reuse.give_up(place)
            self._reuse.corrupt(sequence)
            self._scheduler.begin_again(sequence)
            return
        except Exception as error:
            self._reuse.give_up(place)
            outputs += self._failed([sequence], error)
            return
        sequence.num_steps_done += 1
        self._reuse.prefilled(sequence, call.step, place, last=call.last)
        self._num_prefilled_tokens += call.step.length
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs += result.prompt_logprobs or ()
        if not call.last:
            return
        self._scheduler.start_running(sequence)
        if result.sampled is not None:
            outputs.append(self._take(sequence, result.sampled))
        else:
            outputs.append(self._finish(sequence, "length"))

    @staticmethod
    def _prefill_call(sequence: Sequence, place: int | None) -> PrefillCall:
        assert sequence.slot is not None
        first = sequence.num_steps_done == 0
        step = sequence.prefill_steps[sequence.num_steps_done]
        last = step.end == len(sequence.token_ids)
        tokens = sequence.token_ids
        return PrefillCall(
            slot=sequence.slot,
            step=step,
            tokens=tokens[step.start : step.end],
            block_table=sequence.block_table,
            fresh_state=step.start == 0,
            last=last,
            sample=sequence.sample_spec() if last and sequence.token_limit else None,
            prompt_logprobs=None if sequence.prompt_logprobs is None else sequence.params.prompt_logprobs,
            next_token=None if last else tokens[step.end],
            restore_from=sequence.restoring.place if first and sequence.restoring is not None else None,
            save_to=place,
        )

    def _take(self, sequence: Sequence, sampled: Sampled) -> RequestOutput:
        part = sequence.append(sampled.token)
        self._num_generated_tokens += 1
        output = self._output(sequence, part.text, [sampled], part.finish_reason, part.stop_reason)
        if part.finish_reason is not None:
            self._drop(sequence)
        return output

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> RequestOutput:
        self._drop(sequence)
        return self._output(sequence, "", [], reason, None, error)

    def _failed(self, sequences: list[Sequence], error: Exception) -> list[RequestOutput]:
        ids = ", ".join(sequence.request_id for sequence in sequences)
        logger.error("the runner failed on %s", ids, exc_info=error)
        text = (str(error).splitlines() or [""])[0]
        return [self._finish(sequence, "abort", f"{type(error).__name__}: {text}") for sequence in sequences]

    def _drop(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request_id]
        self._scheduler.remove(sequence)

    @staticmethod
    def _output(
        sequence: Sequence,
        text: str,
        sampled: list[Sampled],
        finish_reason: FinishReason | None,
        stop_reason: str | int | None,
        error: str | None = None,
    ) -> RequestOutput:
        prompt_logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, None
        return RequestOutput(
            request_id=sequence.request_id,
            text=text,
            token_ids=[entry.token for entry in sampled],
            logprobs=None if sequence.params.logprobs is None else sampled,
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            num_output_tokens=sequence.num_output_tokens,
            error=error,
        )

    def stats(self) -> EngineStats:
        """As of now; cheap."""
        scheduler = self._scheduler
        return EngineStats(
            num_running=len(scheduler.running) + (scheduler.prefilling is not None),
            num_waiting=len(scheduler.waiting),
            num_used_blocks=self._pool.num_used - self._cache.num_idle,
            num_blocks=self._pool.num_blocks,
            num_prefilled_tokens=self._num_prefilled_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_idle_blocks=self._cache.num_idle,
            num_snapshots=self._store.num_kept,
            num_evicted_snapshots=self._store.num_evicted,
            reuse=self._reuse.stats,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError unless all blocks and slots are accounted for, and free when nothing runs."""
        self._scheduler.check_integrity()
        if not self.has_work() and self._sequences:
            raise RuntimeError(f"requests {sorted(self._sequences)} are held, and none of them is scheduled")

    def generate(
        self, prompts: Iterable[str | Ids[int]], params: SamplingParams | Ids[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answer `prompts` (texts or token ids) and return when all are done: one output each, in their order.

        params: for all prompts, or one for each. Raises RequestError, and TtkernError if the engine is busy.
        """
        if self.has_work():
            raise TtkernError("generate needs the engine to itself, and requests are being answered")
        token_ids = [self.tokenizer.encode(p) if isinstance(p, str) else list(p) for p in prompts]
        each = [params or SamplingParams()] * len(token_ids) if not isinstance(params, (list, tuple)) else params
        if len(each) != len(token_ids):
            raise TtkernError(f"{len(token_ids)} prompts and {len(each)} sampling params; give one for each, or one")
        parts: dict[str, list[RequestOutput]] = {}
        try:
            for index, (prompt, one) in enumerate(zip(token_ids, each, strict=True)):
                request = Request(f"generate-{index}", prompt, one)
                self.add_request(request)
                parts[request.request_id] = []
            while self.has_work():
                for output in self.step():
                    parts[output.request_id].append(output)
        finally:
            for request_id in parts:
                self.abort(request_id)
        return [merge_outputs(outputs) for outputs in parts.values()]
