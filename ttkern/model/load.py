"""A checkpoint folder, opened on a target: what the server, the notebooks and the tests start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttkern.errors import TtkernError
from ttkern.model.chat_template import ChatTemplate, load_chat_template
from ttkern.model.config import ModelConfig
from ttkern.model.decoder import Decoder
from ttkern.model.device_weights import load_decoder_weights
from ttkern.model.tokenizer import Tokenizer
from ttkern.model.weights import open_weights

Track = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclass(frozen=True)
class LoadedModel:
    """`skipped` counts the checkpoint's tensors of parts that are not run, by part (vision tower, MTP head)."""

    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    skipped: dict[str, int]


def load_model(
    folder: str | Path,
    target: Any,
    *,
    max_model_len: int | None = None,
    attention_chunk: int = 128,
    weight_dtype: str = "bfloat16",
    track: Track = lambda items, _: items,
) -> LoadedModel:
    """Read config, tokenizer and chat template, then put the weights on the target's device.

    max_model_len    positions that will be used (None: the model's own limit)
    attention_chunk  tokens the attention kernels work on at once; every prefill step starts at a multiple of it
    weight_dtype     ttnn dtype name of the projection matrices

    Raises TtkernError, one line naming file and tensor, for a checkpoint that cannot be run.
    """
    folder = Path(folder)
    config = ModelConfig.from_folder(folder)
    if max_model_len is not None and max_model_len > config.max_position_embeddings:
        raise TtkernError(
            f"longest sequence is {max_model_len} tokens, but {folder / 'config.json'} allows"
            f" {config.max_position_embeddings} (max_position_embeddings)"
        )
    tokenizer = Tokenizer.from_folder(folder, config)
    chat_template = load_chat_template(folder)
    source = open_weights(folder, config)
    weights = load_decoder_weights(
        target,
        config,
        source,
        positions=max_model_len or config.max_position_embeddings,
        weight_dtype=weight_dtype,
        track=track,
    )
    decoder = Decoder(target, config, weights, attention_chunk=attention_chunk)
    return LoadedModel(config, decoder, tokenizer, chat_template, dict(source.skipped))
