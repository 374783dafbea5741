"""config.json: the same shapes as transformers reads from it, and a refusal by name of all that is not run."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttkern.errors import TtkernError
from ttkern.model.config import ModelConfig, layer_pattern
from ttkern.model.presets import PRESETS, preset

FLAT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
    "hidden_act": "silu",
    "attn_output_gate": True,
    "eos_token_id": 7,
    "dtype": "bfloat16",
}
SAME_NAMES = [
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "rms_norm_eps"),
    *("linear_value_head_dim", "linear_conv_kernel_dim", "max_position_embeddings", "tie_word_embeddings"),
]


def nested(text: dict[str, Any], **top: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "vision_config": {"model_type": "qwen3_5", "hidden_act": "gelu_pytorch_tanh", "depth": 1},
        "image_token_id": 5,
        "text_config": text,
        **top,
    }


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in FLAT.items() if name not in names}


def assert_read_alike(raw: dict[str, Any], folder: Path) -> None:
    """transformers parses the same file to the same shapes."""
    transformers = pytest.importorskip("transformers", minversion="5.24")
    (folder / "config.json").write_text(json.dumps(raw))
    theirs = transformers.AutoConfig.from_pretrained(folder).get_text_config()
    ours = ModelConfig.from_folder(folder)
    for name in SAME_NAMES:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert list(ours.layer_types) == theirs.layer_types
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.partial_rotary_factor == theirs.rope_parameters["partial_rotary_factor"]
    rope = transformers.models.qwen3_5.modeling_qwen3_5.Qwen3_5TextRotaryEmbedding(theirs)
    assert ours.rotary_dim == 2 * len(rope.inv_freq)
    eos = theirs.eos_token_id
    assert list(ours.eos_token_ids) == ([] if eos is None else eos if isinstance(eos, list) else [eos])
    assert ours.dtype == (None if theirs.dtype is None else str(theirs.dtype).removeprefix("torch."))


@pytest.mark.parametrize(
    "raw",
    [
        FLAT,
        nested(FLAT),
        nested(without("eos_token_id") | {"eos_token_id": [7, 9]}),
        without("dtype", "eos_token_id") | {"torch_dtype": "float16", "tie_word_embeddings": True},
        nested(without("model_type")),
        FLAT | {"full_attention_interval": 2, "num_hidden_layers": 5},
        FLAT | {"layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"]},
        without("rope_parameters") | {"rope_theta": 5e6, "partial_rotary_factor": 0.5},
        without("rope_parameters") | {"rope_theta": 10_000},
        FLAT | {"rope_parameters": {"rope_theta": 1e6, "mrope_section": [3, 3, 2], "mrope_interleaved": True}},
        FLAT | {"rope_parameters": {"rope_theta": 1e6}, "partial_rotary_factor": 0.5},
        FLAT | {"rope_scaling": {"type": "default", "rope_theta": 2e6, "partial_rotary_factor": 1.0}},
    ],
)
def test_reads_what_transformers_reads(raw: dict[str, Any], tmp_path: Path) -> None:
    assert_read_alike(raw, tmp_path)


heads = st.integers(1, 5)


@st.composite
def configs(draw: Any) -> dict[str, Any]:
    layers = draw(st.integers(1, 9))
    kv_heads, key_heads, dim = draw(heads), draw(heads), draw(st.sampled_from([32, 64, 96]))
    raw = FLAT | {
        "num_hidden_layers": layers,
        "full_attention_interval": draw(st.integers(1, 5)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(heads),
        "head_dim": draw(st.sampled_from([32, 64, 128, 192, 256])),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw(heads),
        "linear_key_head_dim": dim,
        "linear_value_head_dim": dim,
        "linear_conv_kernel_dim": draw(st.integers(2, 4)),
        "tie_word_embeddings": draw(st.booleans()),
        "rms_norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
    }
    raw["rope_parameters"] = {
        "rope_theta": draw(st.floats(1e3, 1e8)),
        "partial_rotary_factor": draw(st.sampled_from([0.25, 0.5, 0.75, 1.0])),
    }
    if draw(st.booleans()):
        raw["layer_types"] = draw(
            st.lists(st.sampled_from(["linear_attention", "full_attention"]), min_size=layers, max_size=layers)
        )
    return nested(raw, tie_word_embeddings=raw["tie_word_embeddings"]) if draw(st.booleans()) else raw


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=configs())
def test_reads_random_configs_as_transformers_does(raw: dict[str, Any], tmp_path: Path) -> None:
    assert_read_alike(raw, tmp_path)
    config = ModelConfig.from_dict(raw)
    again = ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config


def test_derived_widths_are_those_of_the_27b_model() -> None:
    config = preset("qwen3.6-27b")
    assert (config.rotary_dim, config.key_dim, config.value_dim, config.conv_dim) == (64, 2048, 6144, 10240)
    assert (config.num_gdn_layers, config.num_attention_layers) == (48, 16)
    assert [index for index, kind in enumerate(config.layer_types) if kind == "full_attention"] == list(range(3, 64, 4))


def test_9b_preset_has_the_shapes_of_transformers_defaults() -> None:
    qwen = pytest.importorskip("transformers.models.qwen3_5")
    theirs, ours = qwen.Qwen3_5TextConfig(), preset("qwen3.5-9b")
    for name in set(SAME_NAMES) - {"max_position_embeddings"}:
        assert getattr(ours, name) == getattr(theirs, name), name


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(TtkernError, match=r"'qwen4'.*qwen3\.5-9b, qwen3\.6-27b"):
        preset("qwen4")
    assert set(PRESETS) == {"qwen3.5-9b", "qwen3.6-27b", "small"}


def test_tied_where_either_place_says_so() -> None:
    assert ModelConfig.from_dict(nested(FLAT, tie_word_embeddings=True)).tie_word_embeddings
    assert ModelConfig.from_dict(nested(FLAT | {"tie_word_embeddings": True})).tie_word_embeddings
    assert not ModelConfig.from_dict(nested(FLAT, tie_word_embeddings=False)).tie_word_embeddings


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "qwen3_5_moe"}, r"model_type is 'qwen3_5_moe'; it must be 'qwen3_5' or 'qwen3_5_text'"),
    ({"model_type": "qwen3_5_moe_text"}, "model_type is 'qwen3_5_moe_text'"),
    ({"model_type": "qwen3_next"}, "model_type is 'qwen3_next'"),
    ({"model_type": "llama"}, "model_type is 'llama'"),
    ({"model_type": None}, "model_type is None"),
    ({"model_type": ["qwen3_5"]}, "model_type is"),
    ({"attention_bias": True}, "attention_bias is True; it must be False"),
    ({"attention_bias": 0}, "attention_bias is 0"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; it must be 'silu'"),
    ({"attn_output_gate": False}, "attn_output_gate is False"),
    ({"output_gate_type": "sigmoid"}, "output_gate_type is 'sigmoid'"),
    ({"num_experts": 128}, "num_experts is 128"),
    ({"quantization_config": {"quant_method": "fp8"}}, r"quantization_config is \{'quant_method': 'fp8'\}"),
    (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        "rope_parameters.rope_type is 'yarn'",
    ),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.rope_type is 'linear'"),
    ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
    ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; it must be an object"),
    ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta is '1e4'; it must be a positive number"),
    ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta is nan"),
    ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta is inf"),
    ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta is 1000"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.5}}, "partial_rotary_factor is 1.5"),
    (
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.05}},
        r"partial_rotary_factor is 0\.05.*\(it is 3\)",
    ),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.01}}, r"partial_rotary_factor.*\(it is 0\)"),
    ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ({"rms_norm_eps": True}, "rms_norm_eps is True"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": 128.0}, r"hidden_size is 128\.0; it must be an int >= 1"),
    ({"hidden_size": "128"}, "hidden_size is '128'"),
    ({"hidden_size": True}, "hidden_size is True"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000; it must be at most 1024"),
    ({"full_attention_interval": None}, "layer_types is missing, and so is full_attention_interval"),
    ({"full_attention_interval": 0}, "full_attention_interval is 0"),
    ({"layer_types": ["linear_attention"]}, "layer_types is '1 entries'; it must be num_hidden_layers entries"),
    ({"layer_types": ["linear_attention", "sliding_attention", "x", "y"]}, r"layer_types\[1\] is 'sliding_attention'"),
    ({"layer_types": "linear_attention"}, "layer_types is 'linear_attention'; it must be a list of strings"),
    ({"num_attention_heads": 5}, "num_attention_heads is 5; it must be a multiple of num_key_value_heads, which is 2"),
    ({"linear_num_value_heads": 3}, "linear_num_value_heads is 3; it must be a multiple of linear_num_key_heads"),
    ({"linear_value_head_dim": 64}, "linear_value_head_dim is 64; it must be linear_key_head_dim, which is 32.*ttnn"),
    ({"linear_key_head_dim": 48, "linear_value_head_dim": 48}, "linear_key_head_dim is 48; .* multiple of 32.*ttnn"),
    ({"head_dim": 96}, "head_dim is 96; it must be 32 or a multiple of 64 .*ttnn"),
    ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1; it must be 2 to 4"),
    ({"linear_conv_kernel_dim": 5}, "linear_conv_kernel_dim is 5; it must be 2 to 4"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be a bool"),
    ({"eos_token_id": "7"}, "eos_token_id is '7'"),
    ({"eos_token_id": True}, "eos_token_id is True"),
    ({"eos_token_id": [3, 1000]}, "eos_token_id is 1000; it must be less than vocab_size, which is 1000"),
    ({"dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn'"),
    ({"dtype": 16}, "dtype is 16"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_is_not_run_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    raw = copy.deepcopy(FLAT) | change
    with pytest.raises(TtkernError, match=rf"^folder/config\.json: {message}") as caught:
        ModelConfig.from_dict(raw, "folder/config.json")
    assert "\n" not in str(caught.value)
    if "model_type" not in change:
        with pytest.raises(TtkernError, match=message):
            ModelConfig.from_dict(nested(raw))


@pytest.mark.parametrize("name", [name for name in SAME_NAMES if name != "tie_word_embeddings"])
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(TtkernError, match=f"^config.json: {name} is missing$"):
        ModelConfig.from_dict(without(name))


def test_nested_parts_are_checked_too() -> None:
    with pytest.raises(TtkernError, match="text_config is missing"):
        ModelConfig.from_dict({"model_type": "qwen3_5"})
    with pytest.raises(TtkernError, match=r"text_config is \[\]; it must be an object"):
        ModelConfig.from_dict(nested([]))  # type: ignore[arg-type]
    with pytest.raises(TtkernError, match=r"text_config\.model_type is 'qwen3_5_moe_text'"):
        ModelConfig.from_dict(nested(FLAT | {"model_type": "qwen3_5_moe_text"}))
    with pytest.raises(TtkernError, match="quantization_config is"):
        ModelConfig.from_dict(nested(FLAT, quantization_config={"bits": 4}))


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(sorted(FLAT)),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_any_value_is_read_or_refused_in_one_line(name: str, value: Any) -> None:
    message = ""
    try:
        ModelConfig.from_dict(FLAT | {name: value})
    except TtkernError as error:
        message = str(error)
    assert "\n" not in message


def test_a_changed_config_is_checked_again() -> None:
    config = ModelConfig.from_dict(FLAT)
    assert dataclasses.replace(config, hidden_size=256).hidden_size == 256
    with pytest.raises(TtkernError, match="layer_types"):
        dataclasses.replace(config, num_hidden_layers=5)
    assert layer_pattern(3, 1) == ("full_attention",) * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not found; a checkpoint folder needs it for the model's shapes"),
        (b"", r"not JSON: Expecting value \(line 1, column 1\)"),
        (b'{"model_type": ', r"not JSON: .*line 1"),
        (b"[1]", "holds a JSON list; an object was expected"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"head_dim": 1, "head_dim": 2}', "the key 'head_dim' stands there twice"),
        (b"[" * 200_000, "not JSON that can be read"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not JSON that can be read|hidden_size|model_type"),
    ],
)
def test_a_broken_file_is_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TtkernError, match=message) as caught:
        ModelConfig.from_folder(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
