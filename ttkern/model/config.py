"""What the decoder needs to know of a checkpoint: its shapes, from a Hugging Face config.json.

Field names and meanings are those of transformers' `Qwen3_5TextConfig`, the reference. The dense text decoder is all
that is run: anything else is refused by name, because a field that is ignored is a wrong answer later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttkern.errors import TtkernError
from ttkern.model.json_file import read_json_object

LINEAR, FULL = "linear_attention", "full_attention"
DTYPES = ("bfloat16", "float16", "float32")
MAX_CONV_WIDTH = 4
_MAX_LAYERS = 1024  # far above any; a wrong number must not ask for memory without end

# Fields that change the model, and the only value of each that is run (also what a config without the field means).
_ONLY_VALUES: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "output_gate_type": "swish",
    "use_sliding_window": False,
    "sliding_window": None,
    "quantization_config": None,
    "quantization": None,
    "num_experts": 0,
}
_ALSO_FINE: dict[str, tuple[Any, ...]] = {
    "attn_output_gate": (None,),
    "output_gate_type": ("silu", None),
    "num_experts": (None,),
}
_TEXT, _NESTED = "qwen3_5_text", "qwen3_5"
_POSITIVE_INTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class ModelConfig:
    """Shapes of a dense Qwen3.5-family text decoder. Creating one checks it; `dataclasses.replace` checks again.

    layer_types           "linear_attention" (GDN) or "full_attention", one per layer
    partial_rotary_factor the part of each attention head that turns; `rotary_dim` entries of `head_dim`
    eos_token_ids         token ids that config.json says end an answer (generation_config.json has the last word)
    dtype                 what config.json says the weights are stored in, or None; the file headers are what counts

    Raises TtkernError naming the field, its value and what would be right.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    max_position_embeddings: int
    rope_theta: float
    partial_rotary_factor: float
    rms_norm_eps: float
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def key_dim(self) -> int:
        """Width of all GDN key heads."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Width of all GDN value heads."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution: q, k and v side by side."""
        return 2 * self.key_dim + self.value_dim

    @property
    def num_gdn_layers(self) -> int:
        return self.layer_types.count(LINEAR)

    @property
    def num_attention_layers(self) -> int:
        return self.layer_types.count(FULL)

    def __post_init__(self) -> None:
        for name in _POSITIVE_INTS:
            _check_int(name, getattr(self, name))
        for name in ("rope_theta", "partial_rotary_factor", "rms_norm_eps"):
            object.__setattr__(self, name, _positive_float(name, getattr(self, name)))
        _check(isinstance(self.tie_word_embeddings, bool), "tie_word_embeddings", self.tie_word_embeddings, "a bool")
        _check(self.dtype is None or self.dtype in DTYPES, "dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        _check_layers(self.num_hidden_layers, self.layer_types)
        _check_eos(self.eos_token_ids, self.vocab_size)
        self._check_attention()
        self._check_gdn()

    def _check_attention(self) -> None:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        _check(
            heads % kv_heads == 0,
            "num_attention_heads",
            heads,
            f"a multiple of num_key_value_heads, which is {kv_heads}",
        )
        dim = self.head_dim
        _check(dim == 32 or dim % 64 == 0, "head_dim", dim, "32 or a multiple of 64 (ttnn's attention ops)")
        factor, turn = self.partial_rotary_factor, self.rotary_dim
        _check(factor <= 1, "partial_rotary_factor", factor, "at most 1")
        wanted = f"such that head_dim {dim} times it is an even number of at least 2 (it is {turn})"
        _check(turn >= 2 and turn % 2 == 0, "partial_rotary_factor", factor, wanted)

    def _check_gdn(self) -> None:
        key_heads, value_heads = self.linear_num_key_heads, self.linear_num_value_heads
        wanted = f"a multiple of linear_num_key_heads, which is {key_heads}"
        _check(value_heads % key_heads == 0, "linear_num_value_heads", value_heads, wanted)
        key, value = self.linear_key_head_dim, self.linear_value_head_dim
        wanted = f"linear_key_head_dim, which is {key} (ttnn's flat gated delta rule takes one width for both)"
        _check(value == key, "linear_value_head_dim", value, wanted)
        _check(key % 32 == 0, "linear_key_head_dim", key, "a multiple of 32, the edge of a ttnn tile")
        width = self.linear_conv_kernel_dim
        wanted = f"2 to {MAX_CONV_WIDTH} (the convolution carries {MAX_CONV_WIDTH - 1} tokens from chunk to chunk)"
        _check(2 <= width <= MAX_CONV_WIDTH, "linear_conv_kernel_dim", width, wanted)

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelConfig:
        """From `folder/config.json`."""
        path = Path(folder) / "config.json"
        return cls.from_dict(read_json_object(path, "the model's shapes"), where=str(path))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """From the object in a config.json: flat (`qwen3_5_text`) or nested (`qwen3_5` with a `text_config`)."""
        try:
            return cls(**_fields_of(raw))
        except TtkernError as error:
            raise TtkernError(f"{where}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """As the flat config.json that transformers' `Qwen3_5ForCausalLM` loads."""
        plain = {name: getattr(self, name) for name in _POSITIVE_INTS}
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": _TEXT,
            **plain,
            "layer_types": list(self.layer_types),
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.partial_rotary_factor,
            },
            "tie_word_embeddings": self.tie_word_embeddings,
            "eos_token_id": list(self.eos_token_ids) or None,
            "dtype": self.dtype,
            "hidden_act": "silu",
            "attention_bias": False,
        }


def layer_pattern(num_layers: int, full_attention_interval: int = 4) -> tuple[str, ...]:
    """Every `full_attention_interval`-th layer attends in full; the others are GDN."""
    return tuple(FULL if (index + 1) % full_attention_interval == 0 else LINEAR for index in range(num_layers))


def _check(holds: bool, field: str, value: object, wanted: str) -> None:
    if not holds:
        raise TtkernError(f"{field} is {_shown(value)}; it must be {wanted}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check_int(field: str, value: object, least: int = 1) -> None:
    # bool is an int in Python, but `true` heads are a mistake.
    _check(
        isinstance(value, int) and not isinstance(value, bool) and value >= least, field, value, f"an int >= {least}"
    )


def _positive_float(field: str, value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    good = good and 0 < value <= 1e300 and math.isfinite(value)
    _check(good, field, value, "a positive number")
    return float(value)


def _check_layers(count: int, types: object) -> None:
    _check(count <= _MAX_LAYERS, "num_hidden_layers", count, f"at most {_MAX_LAYERS}")
    _check(isinstance(types, tuple), "layer_types", types, "a list of strings")
    assert isinstance(types, tuple)
    for index, name in enumerate(types):
        _check(name in (LINEAR, FULL), f"layer_types[{index}]", name, f"{LINEAR!r} or {FULL!r}")
    _check(len(types) == count, "layer_types", f"{len(types)} entries", f"num_hidden_layers entries, which is {count}")


def _check_eos(ids: object, vocab_size: int) -> None:
    _check(isinstance(ids, tuple), "eos_token_id", ids, "a token id or a list of them")
    assert isinstance(ids, tuple)
    for token in ids:
        _check_int("eos_token_id", token, least=0)
        _check(token < vocab_size, "eos_token_id", token, f"less than vocab_size, which is {vocab_size}")


def _fields_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ModelConfig, still unchecked, from either shape of config.json."""
    model_type = raw.get("model_type")
    _check(
        model_type in (_TEXT, _NESTED), "model_type", model_type, f"{_NESTED!r} or {_TEXT!r}: dense Qwen3.5, no other"
    )
    text = raw
    if model_type == _NESTED:
        text = _part(raw, "text_config")
        inner = text.get("model_type", _TEXT)
        _check(inner == _TEXT, "text_config.model_type", inner, repr(_TEXT))
    for source in (raw, text):
        for name, only in _ONLY_VALUES.items():
            value = source.get(name, only)
            fine = type(value) is type(only) and value == only
            fine = fine or value in _ALSO_FINE.get(name, ())
            _check(fine, name, value, f"{only!r}, or absent: nothing else is run")
    found = {name: _required(text, name) for name in _POSITIVE_INTS}
    _check_int("num_hidden_layers", found["num_hidden_layers"])
    return {
        **found,
        **_rope(text),
        "rms_norm_eps": _required(text, "rms_norm_eps"),
        "layer_types": _layer_types(text, found["num_hidden_layers"]),
        "tie_word_embeddings": _tied(raw, text),
        "eos_token_ids": _eos(text if text.get("eos_token_id") is not None else raw),
        "dtype": _dtype(text) or _dtype(raw),
    }


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = _required(raw, name)
    _check(isinstance(value, Mapping), name, value, "an object")
    return value


def _required(raw: Mapping[str, Any], name: str) -> Any:
    if raw.get(name) is None:
        raise TtkernError(f"{name} is missing")
    return raw[name]


def _rope(text: Mapping[str, Any]) -> dict[str, Any]:
    # The older name comes first in transformers too. `mrope_section` and `mrope_interleaved` deal positions out among
    # time, height and width; a text token's three positions are equal, so they change nothing here.
    name = "rope_scaling" if text.get("rope_scaling") else "rope_parameters"
    rope = text.get(name) or {}
    _check(isinstance(rope, Mapping), name, rope, "an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    _check(kind == "default", f"{name}.rope_type", kind, "'default': no other rotary embedding is run")
    theta = rope.get("rope_theta", text.get("rope_theta"))
    if theta is None:
        raise TtkernError("rope_theta is missing, in rope_parameters and beside it")
    # transformers' own default for this family
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))
    return {"rope_theta": theta, "partial_rotary_factor": factor}


def _layer_types(text: Mapping[str, Any], count: int) -> Any:
    types = text.get("layer_types")
    if types is not None:
        return tuple(types) if isinstance(types, list) else types
    interval = text.get("full_attention_interval")
    if interval is None:
        raise TtkernError("layer_types is missing, and so is full_attention_interval")
    _check_int("full_attention_interval", interval)
    return layer_pattern(min(count, _MAX_LAYERS + 1), interval)


def _tied(raw: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    # Nested configs say it outside, inside or both. Where either says so, an lm_head that differs is refused when the
    # weights are opened, so a wrong word here cannot become a wrong answer.
    values = [source.get("tie_word_embeddings", False) for source in (raw, text)]
    for value in values:
        _check(isinstance(value, bool), "tie_word_embeddings", value, "a bool")
    return any(values)


def _eos(source: Mapping[str, Any]) -> Any:
    value = source.get("eos_token_id")
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _dtype(source: Mapping[str, Any]) -> Any:
    value = source.get("dtype") if source.get("dtype") is not None else source.get("torch_dtype")
    return value.removeprefix("torch.") if isinstance(value, str) else value
