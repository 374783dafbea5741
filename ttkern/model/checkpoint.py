"""Writes checkpoints of the Qwen3.5 family, of any shape, as Hugging Face folders: trained weights, or seeded ones.

python -m ttkern.model.checkpoint FOLDER     the demo's checkpoint
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer

from ttkern.errors import TtkernError
from ttkern.model.config import DTYPES, ModelConfig, layer_pattern
from ttkern.model.json_file import read_json_object
from ttkern.model.seed_tokenizer import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, train_tokenizer
from ttkern.model.weights import EMBEDDING, INDEX_FILE, LM_HEAD, SINGLE_FILE, expected_tensors

SMALL = ModelConfig(
    vocab_size=800,  # as many ids as the seeded tokenizer can fill
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=8,
    layer_types=layer_pattern(8),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    linear_conv_kernel_dim=4,
    max_position_embeddings=32768,
    rope_theta=10_000_000.0,
    partial_rotary_factor=0.25,
    rms_norm_eps=1e-6,
)
_LOGIT_STD = 3.0
_DEMO_MARK = "ttkern_demo"


def make_checkpoint(
    folder: str | Path,
    config: ModelConfig = SMALL,
    *,
    seed: int = 0,
    dtype: str = "bfloat16",
    shards: int = 1,
    nested: bool = False,
    prefix: str | None = None,
    tokenizer: bool | Tokenizer = True,
    weights: Mapping[str, torch.Tensor] | None = None,
    tied_head_stored: bool = False,
    extra_tensors: Mapping[str, torch.Tensor] | None = None,
    extra_config: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> ModelConfig:
    """Write a checkpoint that transformers loads as it is; return its config.

    folder            where to; it must not exist, and appears only when it is whole
    seed              of the weights: the same for the same seed, name and shape, however they are sharded
    dtype             of the stored weights: bfloat16, float16 or float32
    nested, prefix    config.json with a text_config; what tensor names begin with (None: as the config's kind has it)
    tokenizer         with a tokenizer (this one, if one is given) and chat template: vocab_size is 259 at least and
                      the turn's end ends an answer
    weights           under the names of `expected_tensors`; None: seeded random ones
    tied_head_stored  with tied embeddings, write lm_head.weight all the same
    extra_tensors     further ones, under their full names; extra_config: further top-level fields of config.json
    overrides         fields of ModelConfig; num_hidden_layers alone brings its layer_types along, and the reverse

    Raises TtkernError for a config that cannot be run, or where `folder` exists.
    """
    config = _overridden(config, overrides)
    if dtype not in DTYPES:
        raise TtkernError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
    prefix = prefix if prefix is not None else "model.language_model." if nested else "model."
    trained = train_tokenizer(config.vocab_size) if tokenizer is True else tokenizer or None
    eos = config.eos_token_ids if trained is None else tuple(trained.get_vocab()[t] for t in (TURN_END, END_OF_TEXT))
    config = dataclasses.replace(config, dtype=dtype, eos_token_ids=eos)
    names = list(expected_tensors(config)) + ([LM_HEAD] if tied_head_stored and config.tie_word_embeddings else [])
    with _new_folder(Path(folder)) as part:
        _write_json(part / "config.json", {**_config_json(config, nested), **(extra_config or {})})
        _write_json(part / "generation_config.json", {"eos_token_id": list(eos) or None})
        if trained is not None:
            trained.save(str(part / "tokenizer.json"))
            _write_json(part / "tokenizer_config.json", _tokenizer_config(config))
            (part / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
        tensors = weights if weights is not None else _Random(config, seed)
        _write_weights(part, config, names, tensors, prefix, shards, extra_tensors or {})
    return config


class _Random(Mapping[str, torch.Tensor]):
    """A config's tensors, each made when it is asked for."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._config, self._seed, self._shapes = config, seed, expected_tensors(config)

    def __getitem__(self, name: str) -> torch.Tensor:
        return random_tensor(self._config, name, self._shapes[name], self._seed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def demo_checkpoint(folder: str | Path) -> Path:
    """The demo's checkpoint in `folder`, made where it is missing or from another version of this code. About 5 MB.

    Raises TtkernError where `folder` holds anything else: nothing of a user's is replaced.
    """
    folder, mark = Path(folder), _demo_fingerprint()
    found = _demo_mark(folder)
    if found == mark:
        return folder
    if found is not None:
        shutil.rmtree(folder)
    try:
        make_checkpoint(folder, extra_config={_DEMO_MARK: mark})
    except TtkernError:
        if _demo_mark(folder) != mark:  # else another process has just made the same
            raise
    return folder


def _demo_mark(folder: Path) -> Any:
    path = folder / "config.json"
    return read_json_object(path, "the demo's mark").get(_DEMO_MARK) if path.is_file() else None


def _demo_fingerprint() -> str:
    """Changes with any source that decides what the demo's files hold."""
    sources = ("checkpoint.py", "seed_tokenizer.py", "config.py", "weights.py")
    digest = hashlib.sha256()
    for name in sources:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:16]


def random_tensor(config: ModelConfig, name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A weight of `expected_tensors`, float32, scaled so that activations stay near 1 and logits spread (std about 3).

    GDN time steps are drawn log-uniformly from 0.001 to 1.3 and decay rates from 0.01 to 16 (transformers starts all
    heads at the upper time step): some heads forget within a token, some remember thousands, so that a state which is
    lost or late shows in the logits.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    if name.endswith("A_log"):
        return torch.empty(shape).uniform_(0.01, 16.0, generator=generator).log()
    if name.endswith("dt_bias"):
        step = 0.001 * (1.3 / 0.001) ** torch.rand(shape, generator=generator)
        return step.expm1().log()  # softplus(dt_bias) is the step
    values = torch.randn(shape, generator=generator)
    if name in (EMBEDDING, LM_HEAD):
        is_head = name == LM_HEAD or config.tie_word_embeddings
        return values * (_LOGIT_STD * config.hidden_size**-0.5 if is_head else 1.0)
    if len(shape) >= 2:
        return values * shape[-1] ** -0.5
    # The gated norm's weight is a plain factor; the others' is added to 1.
    return values * 0.1 + (1.0 if name.endswith("linear_attn.norm.weight") else 0.0)


def _overridden(config: ModelConfig, overrides: dict[str, Any]) -> ModelConfig:
    if "layer_types" in overrides:
        overrides = {"num_hidden_layers": len(overrides["layer_types"]), **overrides}
        overrides["layer_types"] = tuple(overrides["layer_types"])
    elif "num_hidden_layers" in overrides:
        overrides = {"layer_types": layer_pattern(overrides["num_hidden_layers"]), **overrides}
    return dataclasses.replace(config, **overrides)


def _config_json(config: ModelConfig, nested: bool) -> dict[str, Any]:
    flat = config.to_dict()
    if not nested:
        return flat
    flat.pop("architectures")
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": flat,
        "tie_word_embeddings": config.tie_word_embeddings,
        "dtype": config.dtype,
    }


def _tokenizer_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill that takes its name only at the end, so that nobody ever sees a half-written one."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TtkernError(f"{folder}: exists already; a checkpoint is written to a new folder")
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(folder)
    except (OSError, SafetensorError) as error:
        raise TtkernError(f"{folder}: cannot be written: {error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_weights(
    folder: Path,
    config: ModelConfig,
    names: Sequence[str],
    source: Mapping[str, torch.Tensor],
    prefix: str,
    shards: int,
    extra: Mapping[str, torch.Tensor],
) -> None:
    """One shard at a time, so that a large checkpoint needs the memory of one shard."""
    everything = [*names, *extra]
    if not 1 <= shards <= len(everything):
        raise TtkernError(f"shards is {shards}; it must be 1 to {len(everything)}, the number of tensors")
    expected, dtype = expected_tensors(config), getattr(torch, str(config.dtype))
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for index in range(shards):
        file = SINGLE_FILE if shards == 1 else f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        tensors = {}
        for name in everything[len(everything) * index // shards : len(everything) * (index + 1) // shards]:
            if name in extra:
                tensors[name] = extra[name].contiguous()
                continue
            # A tied lm_head that is stored is the embedding once more.
            full = name if name == LM_HEAD else prefix + name
            tensors[full] = source[name if name in expected else EMBEDDING].to(dtype).contiguous()
        save_file(tensors, str(folder / file), metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", folder / file)  # safetensors keeps its files to their owner
        weight_map.update(dict.fromkeys(tensors, file))
        total_bytes += sum(tensor.nbytes for tensor in tensors.values())
    if shards > 1:
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total_bytes}, "weight_map": weight_map})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Make the demo's checkpoint, and mark it as newer than the code, which is what `make` looks at."""
    if len(arguments) != 1:
        raise TtkernError("usage: python -m ttkern.model.checkpoint FOLDER")
    os.utime(demo_checkpoint(arguments[0]) / "config.json")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TtkernError as error:
        sys.exit(f"ttkern: {error}")
