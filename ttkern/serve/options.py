"""What `ttkern serve` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ttkern.errors import TtkernError
from ttkern.targets import TARGETS

Dtype = Literal["bfloat16", "float32"]
KvCacheDtype = Literal["auto", "bfloat16", "bfloat8_b"]
TILE_ROWS = 32


@dataclass(frozen=True)
class ServeOptions:
    """The options of `ttkern serve`, checked as far as they can be without the model.

    model             checkpoint folder: config.json, safetensors, tokenizer.json
    target            where ttnn calls go
    host, port        address to listen on; port 0 takes a free one
    served_model_name name that requests must give (None: the folder's name)
    max_model_len     longest sequence, prompt and answer, in tokens (None: the model's own limit)
    max_num_seqs      sequences decoded together
    chunk_tokens      tokens of a full prefill chunk
    block_size        tokens of a KV block
    dtype             "float32" is the exact mode: every value is float32, whatever dtype a tensor declares
    kv_cache_dtype    ttnn dtype of the KV cache ("auto": bfloat16)
    kv_cache_tokens   tokens that the KV pool holds (None: max_num_seqs sequences of max_model_len)
    enable_prefix_caching  skip the prefill of what was sent before (None: where the other options allow it)
    snapshot_bytes    host memory for the GDN states that this takes
    snapshot_device_bytes  device memory for the same: faster to come back to, spilled to the host when full
    cost_table        JSON file of what prefill steps cost, for the planner (None: exact buckets first)
    enforce_eager     no traces: every step is dispatched op by op
    trace_region_size bytes of DRAM set aside for traces, on real targets
    watchdog_seconds  silicon: end the process, naming the op, when the device takes longer over one (0: never)

    Raises TtkernError for a value that cannot be served, naming the option.
    """

    model: Path
    target: str = "emulated"
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 8
    chunk_tokens: int = 2048
    block_size: int = 64
    dtype: Dtype = "bfloat16"
    kv_cache_dtype: KvCacheDtype = "auto"
    kv_cache_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    snapshot_bytes: int = 4 << 30
    snapshot_device_bytes: int = 0
    cost_table: Path | None = None
    enforce_eager: bool = False
    trace_region_size: int = 0
    watchdog_seconds: float = 0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise TtkernError(f"--port is {self.port}; it must be 0 (any free port) to 65535")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise TtkernError(f"--max-model-len is {self.max_model_len}; it must be at least 1 token")
        if self.max_num_seqs < 1:
            raise TtkernError(f"--max-num-seqs is {self.max_num_seqs}; it must be at least 1")
        for option, value in (("--chunk-tokens", self.chunk_tokens), ("--block-size", self.block_size)):
            if value < TILE_ROWS or value & (value - 1):
                raise TtkernError(
                    f"{option} is {value}; it must be a power of two of at least {TILE_ROWS}, a tile's rows"
                )
        if self.chunk_tokens < self.block_size:
            raise TtkernError(
                f"--chunk-tokens is {self.chunk_tokens} and --block-size {self.block_size}; a chunk is whole blocks"
            )
        if self.kv_cache_tokens is not None and self.kv_cache_tokens < self.block_size:
            raise TtkernError(
                f"--kv-cache-tokens is {self.kv_cache_tokens}; it must be at least one block, {self.block_size} tokens"
            )
        for option, number in (
            ("--snapshot-bytes", self.snapshot_bytes),
            ("--snapshot-device-bytes", self.snapshot_device_bytes),
            ("--trace-region-size", self.trace_region_size),
            ("--watchdog-seconds", self.watchdog_seconds),
        ):
            if number < 0:
                raise TtkernError(f"{option} is {number}; it must be at least 0")
        for option, text, allowed in (
            ("--target", self.target, TARGETS),
            ("--dtype", self.dtype, get_args(Dtype)),
            ("--kv-cache-dtype", self.kv_cache_dtype, get_args(KvCacheDtype)),
        ):
            if text not in allowed:
                raise TtkernError(f"{option} is {text!r}; it must be one of {', '.join(allowed)}")
        for option, given in (("--host", self.host), ("--served-model-name", self.served_model_name)):
            if given is not None and not given.strip():
                raise TtkernError(f"{option} is empty; leave it out for the default")
