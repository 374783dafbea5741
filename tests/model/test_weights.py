"""Opening a checkpoint: everything is checked from the headers, and what is wrong is one line with file and tensor."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ttkern.errors import TtkernError
from ttkern.model import weights as weights_module
from ttkern.model.checkpoint import SMALL, make_checkpoint
from ttkern.model.config import ModelConfig
from ttkern.model.weights import expected_tensors, open_weights

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
Q_PROJ = "model.layers.3.self_attn.q_proj.weight"


def tiny(folder: Path, **options: Any) -> ModelConfig:
    return make_checkpoint(folder, tokenizer=False, **{**TINY, **options})


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """The same file with other tensors in it."""
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def split(file: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def refusal(folder: Path, config: ModelConfig) -> str:
    with pytest.raises(TtkernError) as caught:
        open_weights(folder, config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layers", [["linear_attention"], ["full_attention"], ["linear_attention", "full_attention"]])
def test_expected_tensors_are_those_of_transformers(layers: list[str], tied: bool) -> None:
    qwen = pytest.importorskip("transformers.models.qwen3_5")
    raw = {**SMALL.to_dict(), "layer_types": layers, "num_hidden_layers": len(layers), "tie_word_embeddings": tied}
    with torch.device("meta"):
        theirs = qwen.Qwen3_5ForCausalLM(qwen.Qwen3_5TextConfig(**raw)).state_dict()
    shapes = {name.removeprefix("model."): tuple(tensor.shape) for name, tensor in theirs.items()}
    if tied:
        del shapes["lm_head.weight"]
    assert expected_tensors(ModelConfig.from_dict(raw)) == shapes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_every_layout_gives_the_stored_tensors(
    dtype: str, shards: int, nested: bool, tied: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    config = tiny(folder, dtype=dtype, shards=shards, nested=nested, tie_word_embeddings=tied, seed=5)
    assert ModelConfig.from_folder(folder) == config
    weights = open_weights(folder, config)
    stored = {}
    for file in folder.glob("*.safetensors"):
        stored.update(load_file(file))
    prefix = "model.language_model." if nested else "model."
    assert weights.names() == tuple(expected_tensors(config))
    assert len(weights.files) == shards
    for name, tensor in weights.items():
        assert tensor.dtype == getattr(torch, dtype)
        assert tuple(tensor.shape) == expected_tensors(config)[name]
        assert torch.equal(tensor, stored[name if name == "lm_head.weight" else prefix + name])
        assert weights.nbytes(name) == tensor.nbytes
    assert weights.total_bytes == sum(tensor.nbytes for tensor in stored.values())
    assert weights.skipped == {}


def test_no_data_is_read_before_all_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path / "m")

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("data was read")

    monkeypatch.setattr(weights_module, "safe_open", forbidden)
    weights = open_weights(tmp_path / "m", config)
    with pytest.raises(AssertionError, match="data was read"):
        weights.load("norm.weight")


def test_parts_that_are_not_run_are_skipped_and_counted(tmp_path: Path) -> None:
    names = ["model.visual.patch_embed.proj.weight", "visual.merger.norm.weight", "mtp.fc.weight"]
    extra = {name: torch.zeros(3, dtype=torch.int8) for name in names}
    config = tiny(tmp_path / "m", nested=True, extra_tensors=extra, shards=2)
    weights = open_weights(tmp_path / "m", config)
    assert weights.skipped == {"vision tower": 2, "MTP head": 1}
    assert weights.names() == tuple(expected_tensors(config))


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    config = tiny(folder, tie_word_embeddings=True, tied_head_stored=True)
    weights = open_weights(folder, config)
    assert "lm_head.weight" not in weights.names()
    with pytest.raises(KeyError, match=r"lm_head\.weight"):
        weights.load("lm_head.weight")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"][-1, -1] += 1

    rewrite(folder / "model.safetensors", change)
    assert refusal(folder, config) == (
        f"{folder}/model.safetensors: tensor lm_head.weight: differs from the embedding,"
        " though config.json has tie_word_embeddings true"
    )

    def reshape(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].clone()

    rewrite(folder / "model.safetensors", reshape)
    assert "tensor lm_head.weight: shape [63, 32]; config.json makes it [64, 32]" in refusal(folder, config)


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m")
    rewrite(tmp_path / "m/model.safetensors", lambda tensors: tensors.pop("lm_head.weight"))
    assert refusal(tmp_path / "m", config) == (
        f"{tmp_path}/m/model.safetensors: tensor lm_head.weight of shape [64, 32] is missing"
    )


def test_every_missing_tensor_is_named(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m")
    file = tmp_path / "m/model.safetensors"
    whole = file.read_bytes()
    for name in expected_tensors(config):
        full = name if name == "lm_head.weight" else f"model.{name}"
        rewrite(file, lambda tensors, full=full: tensors.pop(full))  # type: ignore[misc]
        message = refusal(tmp_path / "m", config)
        assert str(file) in message
        assert f"tensor {name} " in message
        assert "missing" in message
        file.write_bytes(whole)
    assert open_weights(tmp_path / "m", config).names()


def test_every_wrong_shape_is_named(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m")
    file = tmp_path / "m/model.safetensors"
    original = {name: tensor.clone() for name, tensor in load_file(file).items()}
    for name, tensor in original.items():
        wrong = [tensor.unsqueeze(0)] + ([tensor.T] if tensor.ndim == 2 and len(set(tensor.shape)) == 2 else [])
        for changed in wrong:
            save_file({**original, name: changed.contiguous()}, file)
            message = refusal(tmp_path / "m", config)
            assert message.startswith(f"{file}: tensor {name}: shape {list(changed.shape)}; ")
            assert str(list(tensor.shape)) in message


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.linear_attn.in_proj_qkvz.weight",
        "model.layers.4.mlp.up_proj.weight",
        "model.layers.3.self_attn.q_proj.bias",
        "model.layers.3.self_attn.q_proj.weight_scale_inv",
        "model.layers.0.mlp.experts.0.up_proj.weight",
        "model.lm_head.weight",
        "layers.0.mlp.up_proj.weight",
        "transformer.wte.weight",
        "modelvisual.weight",
        "",
    ],
)
def test_an_unknown_tensor_is_refused(name: str, tmp_path: Path) -> None:
    config = tiny(tmp_path / "m", extra_tensors={name: torch.zeros(4)})
    assert refusal(tmp_path / "m", config).startswith(f"{tmp_path}/m/model.safetensors: tensor {name}: unknown; ")


def test_a_dtype_that_is_no_weight_is_refused(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[Q_PROJ] = tensors[Q_PROJ].to(torch.float8_e4m3fn)

    rewrite(tmp_path / "m/model.safetensors", change)
    assert f"tensor {Q_PROJ}: dtype F8_E4M3; weights are read from BF16, F16, F32" in refusal(tmp_path / "m", config)


def test_a_tensor_under_both_prefixes_is_refused(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m", extra_tensors={"model.language_model.norm.weight": torch.zeros(32)})
    message = refusal(tmp_path / "m", config)
    assert "stored twice" in message
    assert "tensor model.language_model.norm.weight: " in message or "as model.language_model.norm.weight" in message
    assert "tensor model.norm.weight: " in message or "as model.norm.weight" in message


def test_a_name_that_is_no_line_is_shown_escaped(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m", extra_tensors={"two\nlines": torch.zeros(4)})
    assert r"tensor 'two\nlines': unknown" in refusal(tmp_path / "m", config)
    header, data = split(tmp_path / "m/model.safetensors")
    header["half \ud800"] = header.pop("two\nlines")
    (tmp_path / "m/model.safetensors").write_bytes(join(header, data))
    assert r"tensor 'half \ud800': unknown" in refusal(tmp_path / "m", config)


def edit_index(folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_what_the_index_and_the_shards_disagree_on_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    config = tiny(folder, shards=3)
    first, second, _ = sorted(folder.glob("*.safetensors"))
    index = (folder / "model.safetensors.index.json").read_text()
    name = next(iter(load_file(second)))

    edit_index(folder, lambda files: files.update({name: first.name}))
    assert (
        refusal(folder, config) == f"{second}: tensor {name}: model.safetensors.index.json says it is in {first.name}"
    )
    edit_index(folder, lambda files: files.pop(name))
    assert refusal(folder, config).endswith(f"tensor {name}: model.safetensors.index.json says it is nowhere")
    (folder / "model.safetensors.index.json").write_text(index)
    edit_index(folder, lambda files: files.update({"model.more.weight": first.name}))
    assert f"{first}: tensor model.more.weight is missing" in refusal(folder, config)
    edit_index(folder, lambda files: files.update({"model.more.weight": "../other.safetensors"}))
    assert "names the file '../other.safetensors'; it must lie in the same folder" in refusal(folder, config)
    edit_index(folder, lambda files: files.update({"model.more.weight": "x" * 5000}))
    assert "x: not found; model.safetensors.index.json puts tensor model.more.weight there" in refusal(folder, config)
    (folder / "model.safetensors.index.json").write_text(index)

    twice = load_file(second)[name].clone()
    rewrite(first, lambda tensors: tensors.update({name: twice}))
    assert (
        refusal(folder, config) == f"{first}: tensor {name}: model.safetensors.index.json says it is in {second.name}"
    )

    rewrite(first, lambda tensors: tensors.pop(name))
    second.unlink()
    assert refusal(folder, config).startswith(f"{second}: not found; model.safetensors.index.json puts tensor ")


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}']
)
def test_a_broken_index_is_named(content: str, tmp_path: Path) -> None:
    config = tiny(tmp_path / "m", shards=2)
    path = tmp_path / "m/model.safetensors.index.json"
    path.write_text(content)
    assert refusal(tmp_path / "m", config).startswith(f"{path}: ")


def test_a_folder_without_weights_says_what_is_looked_for(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m")
    (tmp_path / "m/model.safetensors").rename(tmp_path / "m/pytorch_model.bin")
    message = refusal(tmp_path / "m", config)
    assert message.startswith(f"{tmp_path}/m: has neither model.safetensors nor model.safetensors.index.json")
    assert "nor" in refusal(tmp_path / "nowhere", config)


def test_a_truncated_file_is_found_at_any_length(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m")
    file = tmp_path / "m/model.safetensors"
    whole = file.read_bytes()
    header_end = 8 + struct.unpack("<Q", whole[:8])[0]
    step = len(whole) // 40
    for length in [0, 1, 7, 8, 9, 100, header_end - 1, header_end, header_end + 1, *range(step, len(whole), step)]:
        file.write_bytes(whole[:length])
        message = refusal(tmp_path / "m", config)
        assert message.startswith(f"{file}: ")
        assert "trunc" in message
        if length >= header_end:
            assert "tensor model." in message or "tensor lm_head" in message
    file.write_bytes(whole + b"\0")
    assert "1 bytes after the last tensor" in refusal(tmp_path / "m", config)


def broken_headers() -> dict[str, tuple[Callable[[dict[str, Any]], Any], str]]:
    def entry(**change: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda header: header[Q_PROJ].update(change)

    return {
        "no object": (lambda header: header.update({Q_PROJ: 3}), f"tensor {Q_PROJ}: its header entry is not an object"),
        "no dtype": (lambda header: header[Q_PROJ].pop("dtype"), f"tensor {Q_PROJ}: unknown dtype None"),
        "other dtype": (entry(dtype="BF17"), f"tensor {Q_PROJ}: unknown dtype 'BF17'"),
        "list dtype": (entry(dtype=[]), f"tensor {Q_PROJ}: unknown dtype"),
        "text shape": (entry(shape="128"), f"tensor {Q_PROJ}: shape is '128'"),
        "negative shape": (entry(shape=[-128, -32]), f"tensor {Q_PROJ}: shape is"),
        "bool shape": (entry(shape=[True]), f"tensor {Q_PROJ}: shape is"),
        "other size": (
            entry(shape=[127, 32]),
            f"tensor {Q_PROJ}: BF16 [127, 32] takes 8128 bytes, data_offsets give 8192",
        ),
        "one offset": (entry(data_offsets=[0]), f"tensor {Q_PROJ}: data_offsets is [0]"),
        "huge offset": (entry(data_offsets=[0, 10**30]), f"tensor {Q_PROJ}: data_offsets is"),
        "overlap": (entry(data_offsets=[0, 8192]), "overlaps"),
        "gap": (lambda header: header.pop(Q_PROJ), "follows a gap"),
    }


@pytest.mark.parametrize("case", broken_headers())
def test_a_header_that_lies_is_refused(case: str, tmp_path: Path) -> None:
    change, message = broken_headers()[case]
    config = tiny(tmp_path / "m")
    file = tmp_path / "m/model.safetensors"
    header, data = split(file)
    assert header[Q_PROJ]["shape"] == [128, 32]
    change(header)
    file.write_bytes(join(header, data))
    found = refusal(tmp_path / "m", config)
    assert found.startswith(f"{file}: ")
    assert message in found


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (join(b"not json", b""), "header: not JSON"),
        (join(b"[]", b""), "header: holds a JSON list"),
        (join(b"\xff\xfe", b""), "header: not UTF-8"),
        (join(b'{"a": 1, "a": 1}', b""), "header: the key 'a' stands there twice"),
        (join(b"{}", b""), "tensor embed_tokens.weight of shape [64, 32] is missing"),
        (b"PK\x03\x04" + b"x" * 100, "not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "not a safetensors file"),
    ],
)
def test_a_file_that_is_something_else_is_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    config = tiny(tmp_path / "m")
    file = tmp_path / "m/model.safetensors"
    file.write_bytes(raw)
    found = refusal(tmp_path / "m", config)
    assert found.startswith(f"{file}: ")
    assert message in found


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 9000), value=st.integers(0, 255))
def test_a_changed_byte_of_the_header_never_ends_in_a_traceback(position: int, value: int, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    config = tiny(folder) if not folder.exists() else ModelConfig.from_folder(folder)
    whole = (folder / "model.safetensors").read_bytes()
    changed = bytearray(whole)
    header_bytes = 8 + struct.unpack("<Q", whole[:8])[0]
    changed[position % header_bytes] = value
    (folder / "model.safetensors").write_bytes(changed)
    message = ""
    try:
        weights = open_weights(folder, config)
        for name in weights.names():
            weights.load(name)
    except TtkernError as error:
        message = str(error)
        assert str(folder) in message
    finally:
        (folder / "model.safetensors").write_bytes(whole)
    assert "\n" not in message


def test_the_single_file_goes_first_as_in_transformers(tmp_path: Path) -> None:
    config = tiny(tmp_path / "m", shards=2, seed=1)
    tiny(tmp_path / "other", seed=2)
    (tmp_path / "other/model.safetensors").rename(tmp_path / "m/model.safetensors")
    weights = open_weights(tmp_path / "m", config)
    with safe_open(tmp_path / "m/model.safetensors", "pt") as file:
        assert torch.equal(weights.load("norm.weight"), file.get_tensor("model.norm.weight"))
