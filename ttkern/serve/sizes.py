"""From options and a model to the sizes that the device is laid out for."""

from __future__ import annotations

from ttkern.engine.runner import RunnerConfig
from ttkern.errors import TtkernError
from ttkern.model.config import ModelConfig
from ttkern.model.work import state_bytes
from ttkern.serve.options import ServeOptions


def runner_config(options: ServeOptions, model: ModelConfig) -> RunnerConfig:
    """Sizes of the device's buffers, from the options and the model's own limit. Raises TtkernError with the numbers
    for sizes that cannot work together."""
    longest = options.max_model_len or model.max_position_embeddings
    if longest > model.max_position_embeddings:
        raise TtkernError(
            f"--max-model-len is {longest}; the model allows {model.max_position_embeddings} (max_position_embeddings)"
        )
    tokens = options.kv_cache_tokens or options.max_num_seqs * longest
    blocks = -(-tokens // options.block_size) if options.kv_cache_tokens is None else tokens // options.block_size
    one_sequence = -(-longest // options.block_size)
    if blocks < one_sequence:
        raise TtkernError(
            f"--kv-cache-tokens is {tokens}, {blocks} blocks of {options.block_size}; one sequence of --max-model-len"
            f" {longest} takes {one_sequence} blocks"
        )
    caching = caches_prefixes(options, model, longest)
    return RunnerConfig(
        snapshot_bytes=options.snapshot_bytes if caching else 0,
        snapshot_device_bytes=options.snapshot_device_bytes if caching else 0,
        max_model_len=longest,
        chunk_tokens=options.chunk_tokens,
        block_size=options.block_size,
        num_blocks=blocks,
        max_num_seqs=options.max_num_seqs,
        kv_cache_dtype="bfloat16" if options.kv_cache_dtype == "auto" else options.kv_cache_dtype,
    )


def caches_prefixes(options: ServeOptions, model: ModelConfig, longest: int) -> bool:
    """Whether prefixes are cached: unless told otherwise, where they can be.

    Raises TtkernError where it was asked for and cannot be, with the numbers.
    """
    if options.enable_prefix_caching is False:
        return False
    why = None
    one, budget = state_bytes(model), options.snapshot_bytes + options.snapshot_device_bytes
    if longest <= options.chunk_tokens:
        why = (
            f"--max-model-len is {longest} and --chunk-tokens {options.chunk_tokens}: no prompt is longer than a chunk"
        )
    elif max(options.snapshot_bytes, options.snapshot_device_bytes) < max(one, 1):
        why = f"--snapshot-bytes and --snapshot-device-bytes are {budget} together; one state takes {one}"
    if why is None:
        return True
    if options.enable_prefix_caching:
        raise TtkernError(f"--enable-prefix-caching: {why}")
    return False
