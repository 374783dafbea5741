"""The engine's hands on the device: buffers, traces, and what is refreshed before each replay.

Order at start, which the real library demands: allocate everything, compile every program on the very buffers it will
use, forbid program-cache misses, capture all traces. After that a request allocates nothing and compiles nothing.

    prefill step   refresh <= 8 input tensors, replay the bucket's trace; the last one also replays `finish`
    finish         logits of the last row, hand the GDN states over to the decode row, zero the prefill states
    decode step    refresh <= 4 input tensors, replay `decode`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ttkern.engine.decode_step import DecodeBuffers, StoreBuffers
from ttkern.engine.device_inputs import DeviceInput
from ttkern.engine.runner_protocol import (
    CorruptSnapshotError,
    DecodeRow,
    PrefillCall,
    PrefillResult,
    Sampled,
    SampleSpec,
)
from ttkern.engine.sampling import sample, score
from ttkern.engine.snapshots import DecodeRowState, Snapshots, flatten
from ttkern.engine.traces import Trace
from ttkern.errors import TtkernError
from ttkern.model.decoder import HEAD_ROWS, Decoder, PrefillInputs
from ttkern.model.work import prefill_flops, state_bytes

MIN_BUCKET = 128
MAX_PLACES = 1 << 12  # of snapshots: each that makes room for another is searched for among all
Track = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclass(frozen=True)
class RunnerConfig:
    """Sizes that the device is laid out for.

    max_model_len     longest sequence, prompt and answer, in tokens
    chunk_tokens      tokens of a full prefill chunk, a power of two
    block_size        tokens of a KV block
    num_blocks        KV blocks that sequences may own (one more is kept as scratch)
    max_num_seqs      decode rows
    kv_cache_dtype    ttnn dtype name of the KV cache
    pad_token_id      what stands in padded positions; the numbers do not depend on it
    max_masked_bucket largest padded step (at least the smallest exact bucket, so that every tail can run)
    snapshot_bytes    host memory for states of prompts that may come again; 0 keeps none
    snapshot_device_bytes  the same on the device
    """

    max_model_len: int
    chunk_tokens: int = 2048
    block_size: int = 64
    num_blocks: int = 1024
    max_num_seqs: int = 8
    kv_cache_dtype: str = "bfloat16"
    pad_token_id: int = 0
    max_masked_bucket: int = 0
    snapshot_bytes: int = 0
    snapshot_device_bytes: int = 0

    def __post_init__(self) -> None:
        if self.block_size < 32 or self.block_size & (self.block_size - 1):
            raise TtkernError(
                f"block size is {self.block_size}; it must be a power of two of at least 32 (a tile's rows)"
            )
        if self.chunk_tokens < 32 or self.chunk_tokens & (self.chunk_tokens - 1):
            raise TtkernError(f"chunk is {self.chunk_tokens} tokens; it must be a power of two of at least 32")
        if self.max_masked_bucket > self.chunk_tokens:
            raise TtkernError(
                f"largest masked bucket is {self.max_masked_bucket} tokens; a chunk of {self.chunk_tokens} bounds it"
            )
        if self.chunk_tokens % self.block_size:
            raise TtkernError(
                f"chunk is {self.chunk_tokens} tokens and block size is {self.block_size}: the chunk must be a multiple"
            )

    @property
    def min_bucket(self) -> int:
        """The smallest exact bucket; every step starts at a multiple of it."""
        return min(self.chunk_tokens, max(MIN_BUCKET, self.block_size))

    @property
    def attention_chunk(self) -> int:
        """Tokens the attention kernels work on at once: every step starts at a multiple of it."""
        return min(128, self.min_bucket)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Exact buckets under a chunk, descending powers of two."""
        return tuple(_powers(self.min_bucket, self.chunk_tokens // 2))

    @property
    def masked_buckets(self) -> tuple[int, ...]:
        """Padded sizes, descending."""
        return tuple(_powers(32, max(self.min_bucket, self.max_masked_bucket)))

    @property
    def page_table_width(self) -> int:
        """Blocks of the longest sequence, or of a chunk if longer, in the multiple of 8 that attention wants."""
        blocks = -(-max(self.max_model_len, self.chunk_tokens) // self.block_size)
        return -(-blocks // 8) * 8

    @property
    def device_blocks(self) -> int:
        """Blocks of the pool: one more for scratch, and no fewer than a row of the page table, or ttnn refuses it."""
        return max(self.num_blocks + 1, self.page_table_width)


def _powers(low: int, high: int) -> list[int]:
    return [1 << e for e in range(high.bit_length() - 1, low.bit_length() - 2, -1)] if high >= low else []


def _is_plain(spec: SampleSpec) -> bool:
    """Whether the device's own argmax is what is asked for."""
    return spec.temperature == 0 and spec.logprobs is None and not spec.forbidden


class DeviceRunner:
    """Runs one model on one target; see `runner_protocol.Runner` for what the engine asks of it."""

    def __init__(self, decoder: Decoder, config: RunnerConfig) -> None:
        """Allocate everything; `start` must follow before a step can run."""
        self.decoder, self.config, self.target = decoder, config, decoder.target
        self.num_blocks, self.block_size = config.num_blocks, config.block_size
        self.max_num_seqs, self.max_model_len = config.max_num_seqs, config.max_model_len
        self.vocab_size = decoder.config.vocab_size
        self.chunk_tokens, self.buckets, self.masked_buckets = (
            config.chunk_tokens,
            config.buckets,
            config.masked_buckets,
        )
        self.scratch_block = config.num_blocks
        self.state = decoder.allocate_state(
            num_blocks=config.device_blocks,
            block_size=config.block_size,
            rows=config.max_num_seqs,
            kv_dtype=config.kv_cache_dtype,
        )
        self._zeros = decoder.empty_prefill_state()
        self._dirty = False  # the prefill states hold a sequence that has not finished
        self._decoding: set[int] = set()
        self._head_rows = self._device_zeros((1, HEAD_ROWS, decoder.config.hidden_size))
        self.decode_inputs = DecodeBuffers(self.target, config, self.scratch_block)
        self._store_in = StoreBuffers(self.target, config)
        self.steps = {
            (size, masked): _Step(self, size, masked)
            for masked, sizes in ((False, (config.chunk_tokens, *config.buckets)), (True, config.masked_buckets))
            for size in sizes
        }
        self.snapshot_bytes = state_bytes(decoder.config)
        self.num_device_snapshots = self._places(config.snapshot_device_bytes)
        self.num_host_snapshots = self._places(config.snapshot_bytes)
        self._snapshots = Snapshots(
            self.target, flatten(self.state.prefill), self.num_device_snapshots, self.num_host_snapshots
        )
        self._row_state = DecodeRowState(decoder, self.state, config.max_num_seqs) if self.keeps_snapshots else None
        self._decode = Trace("decode", self.target, self._decode_body)
        self._logits_read: Any = None
        self._reads = [self.target.ttnn.from_device(self.decode_inputs.token_ids.tensor) for _ in range(2)]
        self._head = Trace("head", self.target, lambda: decoder.head(self._head_rows))
        self._finish = Trace("finish", self.target, self._finish_body)
        self._reset = Trace("reset", self.target, lambda: decoder.reset_prefill(self._zeros, self.state))
        self.traces: list[Trace] = [
            *(trace for step in self.steps.values() for trace in (step.body, step.gather)),
            self._decode,
            self._head,
            self._finish,
            self._reset,
            *self._snapshots.traces,
            *([self._row_state.trace] if self._row_state else []),
        ]

    def start(self, track: Track = lambda items, _: items) -> None:
        """Compile every program on the buffers it will use, forbid others, and capture all traces."""
        for trace in track(self.traces, "compiling programs"):
            trace.compile()
        self.target.device.set_program_cache_misses_allowed(False)
        for trace in track(self.traces, "capturing traces"):
            trace.capture()
        self._reset.replay()

    @property
    def keeps_snapshots(self) -> bool:
        """Whether there is a place for any."""
        return self.num_device_snapshots + self.num_host_snapshots > 0

    def _places(self, budget: int) -> int:
        if not self.snapshot_bytes:  # a model without GDN layers has a state of no bytes
            return self.num_blocks if budget else 0
        return min(budget // self.snapshot_bytes, MAX_PLACES)

    def _device_zeros(self, shape: tuple[int, ...]) -> Any:
        ttnn = self.target.ttnn
        return ttnn.zeros(shape, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=self.target.device)

    def _finish_body(self) -> tuple[Any, Any]:
        ttnn = self.target.ttnn
        logits, tokens = self.decoder.head(self._head_rows)
        self.decoder.store_prefilled(self._store_in.inputs, self.state)
        self.decoder.reset_prefill(self._zeros, self.state)
        return ttnn.slice(logits, [0, 0, 0], [1, 1, self.vocab_size]), tokens

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """One step of one sequence's prefill; see `PrefillCall`."""
        if call.restore_from is not None:
            self._snapshots.load(call.restore_from)
        elif call.fresh_state:
            self._snapshots.forget()
            if self._dirty:
                self._reset.replay()
        self._dirty = True
        step = self.steps[call.step.bucket, call.step.path == "masked_bucket"]
        step.refresh(call)
        step.body.replay()
        if call.save_to is not None:
            self._snapshots.save(call.save_to)
        sampled = None
        if call.last:
            corrupt = self._snapshots.corrupt()
            if corrupt is not None:
                raise CorruptSnapshotError(corrupt)
            self._store_in.refresh(call.slot)
            logits, tokens = self._finish.replay()
            self._dirty = False
            self._decoding.add(call.slot)
            if call.sample is not None:
                sampled = self._pick(call.sample, logits, tokens)
        scores = None if call.prompt_logprobs is None else self._score_prompt(step, call, call.prompt_logprobs)
        return PrefillResult(sampled, scores)

    def _score_prompt(self, step: _Step, call: PrefillCall, top: int) -> list[Sampled]:
        following = list(call.tokens[1:]) + ([] if call.next_token is None else [call.next_token])
        scores: list[Sampled] = []
        for first in range(0, len(following), HEAD_ROWS):
            part = following[first : first + HEAD_ROWS]
            step.want_rows(list(range(first, first + len(part))), call.step.length)
            step.gather.replay()
            logits = self._to_numpy(self._head.replay()[0])[0]
            scores.extend(score(logits[i], token, top) for i, token in enumerate(part))
        step.want_rows([call.step.length - 1], call.step.length)
        return scores

    def _decode_body(self) -> tuple[Any, Any]:
        """The step, and its greedy tokens and positions made those of the next one: the host need not send them."""
        ttnn, inputs = self.target.ttnn, self.decode_inputs.inputs
        logits, tokens = self.decoder.decode(inputs, self.state)
        ttnn.copy(tokens, inputs.token_ids)
        ttnn.plus_one(inputs.positions)
        ttnn.plus_one(inputs.cache_positions)
        return logits, tokens

    def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled]:
        """One token for every sequence that has been prefilled and not released; idle rows compute on scratch."""
        return self.launch_decode(rows)()

    def launch_decode(self, rows: Sequence[DecodeRow]) -> Callable[[], list[Sampled]]:
        """Begin a decode step; what is returned waits for its tokens."""
        slots, specs = [row.slot for row in rows], [row.sample for row in rows]
        if set(slots) != self._decoding:
            # A row left out would still advance on the device, by a token that is not its own.
            raise ValueError(f"decode of rows {sorted(slots)}, but rows {sorted(self._decoding)} hold sequences")
        self.decode_inputs.refresh(rows)
        logits, tokens = self._decode.replay()
        self.decode_inputs.advance(rows)
        for row in rows:
            if row.save_to is not None and self._row_state is not None:
                self._snapshots.save_from(self._row_state.take(row.slot), row.save_to)
        # The read is queued now: whatever trace runs next may overwrite what this one has put out.
        ttnn, device = self.target.ttnn, self.target.device
        plain = all(_is_plain(spec) for spec in specs)
        if plain:
            self._reads.reverse()  # two, because the next step may be launched before anybody waits for this one
            read = self._reads[0]
        else:
            read = self._logits_read = self._logits_read or ttnn.from_device(logits)
        ttnn.copy_device_to_host_tensor(tokens if plain else logits, read, blocking=False)
        done = ttnn.record_event(device, 0)

        def collect() -> list[Sampled]:
            ttnn.event_synchronize(done)
            values = self._to_numpy(read)[0]
            if plain:
                return [Sampled(int(values[slot]), None, ()) for slot in slots]
            return [sample(values[slot], spec) for slot, spec in zip(slots, specs, strict=True)]

        return collect

    def move_snapshot(self, source: int, target: int) -> None:
        """Spill a state from a place on the device to one in host memory."""
        self._snapshots.move(source, target)

    def prefill_work(self, num_tokens: int) -> float:
        """Floating-point operations."""
        return prefill_flops(self.decoder.config, num_tokens)

    def release(self, slot: int) -> None:
        """The slot's sequence is gone; a state half prefilled is zeroed before the next sequence begins."""
        self._decoding.discard(slot)
        self.decode_inputs.clear(slot)

    def _pick(self, spec: SampleSpec, logits: Any, tokens: Any) -> Sampled:
        if _is_plain(spec):
            return Sampled(int(self._to_numpy(tokens).reshape(-1)[0]), None, ())
        return sample(self._to_numpy(logits)[0][0], spec)

    def _to_numpy(self, tensor: Any) -> np.ndarray:
        return self.target.ttnn.to_torch(tensor).numpy()


class _Step:
    """One bucket: its inputs, its trace, and the trace that picks other rows of its hidden states for the head."""

    def __init__(self, runner: DeviceRunner, size: int, masked: bool) -> None:
        target, config = runner.target, runner.config
        self.runner, self.size, self.masked = runner, size, masked
        self.token_ids = DeviceInput(target, (1, size), "uint32")
        self.positions = DeviceInput(target, (1, size), "uint32")
        self.chunk_start_idx = DeviceInput(target, (1,), "int32")
        self.page_table = DeviceInput(target, (1, config.page_table_width), "int32")
        self.fill_table = DeviceInput(target, (1, max(1, size // config.block_size)), "int32")
        self.rows = DeviceInput(target, (1, HEAD_ROWS + 3 if masked else HEAD_ROWS), "uint32")
        self.mask = DeviceInput(target, (1, size, 1), "float32", layout="tile") if masked else None
        self.want_rows([size - 1], size)
        self.page_table.refresh([runner.scratch_block] * config.page_table_width)
        self.fill_table.refresh([runner.scratch_block] * self.fill_table.shape[1])
        self.inputs = PrefillInputs(
            self.token_ids.tensor,
            self.positions.tensor,
            self.chunk_start_idx.tensor,
            self.page_table.tensor,
            self.fill_table.tensor,
            self.rows.tensor,
            None if self.mask is None else self.mask.tensor,
        )
        name = f"masked_bucket_{size}" if masked else f"prefill_{size}"
        self.body = Trace(name, target, self._body)
        self.gather = Trace(f"{name}_rows", target, self._gather)
        self._hidden: Any = None

    def _body(self) -> None:
        ttnn, runner = self.runner.target.ttnn, self.runner
        self._hidden, picked = runner.decoder.prefill(self.inputs, runner.state)
        ttnn.copy(picked, runner._head_rows)

    def _gather(self) -> None:
        ttnn = self.runner.target.ttnn
        ttnn.copy(self.runner.decoder.gather(self.inputs, self._hidden), self.runner._head_rows)

    def refresh(self, call: PrefillCall) -> None:
        """Bring this step's tokens, positions, tables and, where padded, masks to the device."""
        step, config, scratch = call.step, self.runner.config, self.runner.scratch_block
        padding = self.size - step.length
        first = step.start // config.block_size
        used = -(-(step.start + step.length) // config.block_size)
        self.token_ids.refresh([*call.tokens, *[config.pad_token_id] * padding])
        last_position = config.max_model_len - 1
        self.positions.refresh(torch.arange(step.start, step.start + self.size).clamp_(max=last_position))
        self.chunk_start_idx.refresh([step.start])
        table = np.full(config.page_table_width, scratch, dtype=np.int32)
        table[:used] = call.block_table[:used]
        self.page_table.refresh(table)
        fill = np.full(self.fill_table.shape[1], scratch, dtype=np.int32)
        fill[: used - first] = table[first:used]
        self.fill_table.refresh(fill)
        if self.mask is not None:
            self.mask.refresh(torch.arange(self.size) < step.length)
            self.want_rows([step.length - 1], step.length)

    def want_rows(self, rows: list[int], length: int) -> None:
        """Name the rows (at most 32) whose logits are wanted, and where the `length` real tokens end."""
        carry = [length, length + 1, length + 2] if self.masked else []
        self.rows.refresh([*rows, *[rows[-1]] * (HEAD_ROWS - len(rows)), *carry])
