"""A checkpoint's tensors: all checked from the file headers first, then read one at a time through a memory map."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ttkern.errors import TtkernError
from ttkern.model.config import LINEAR, ModelConfig
from ttkern.model.json_file import read_json_object
from ttkern.model.safetensors_file import StoredTensor, read_header, shown

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"

_PREFIXES = ("model.language_model.", "model.")  # the longer one first
_DTYPES = ("BF16", "F16", "F32")
# Parts of a checkpoint that are not run, by how the names of their tensors begin.
_SKIPPED = {"vision tower": ("visual.", "model.visual."), "MTP head": ("mtp.", "model.mtp.")}
_COMPARED_BYTES = 1 << 24


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name (without prefix) and shape of every tensor that the decoder reads, in the order in which it does.

    With tied embeddings there is no lm_head.weight. Linear weights are [out, in], as torch's nn.Linear stores them.
    """
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for index, kind in enumerate(config.layer_types):
        mixer = _gdn_tensors(config) if kind == LINEAR else _attention_tensors(config)
        shapes.update(
            {f"layers.{index}.{name}": shape for name, shape in (*mixer.items(), *_mlp_tensors(config).items())}
        )
    shapes["norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def _gdn_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    return {
        "input_layernorm.weight": (hidden,),
        "linear_attn.in_proj_qkv.weight": (config.conv_dim, hidden),
        "linear_attn.in_proj_z.weight": (config.value_dim, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (config.conv_dim, 1, config.linear_conv_kernel_dim),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.A_log": (heads,),
        "linear_attn.norm.weight": (config.linear_value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, config.value_dim),
    }


def _attention_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, dim = config.hidden_size, config.head_dim
    query, key = config.num_attention_heads * dim, config.num_key_value_heads * dim
    return {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (2 * query, hidden),  # per head: query, then output gate
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "self_attn.o_proj.weight": (hidden, query),
    }


def _mlp_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


class Weights:
    """The tensors of one checkpoint, by name without prefix. Made by `open_weights`, which has checked them all.

    skipped  number of tensors of parts that are not run, by part ("vision tower", "MTP head")
    files    the safetensors files that were read
    """

    def __init__(self, tensors: dict[str, StoredTensor], skipped: dict[str, int], files: tuple[Path, ...]) -> None:
        self._tensors = tensors
        self.skipped = skipped
        self.files = files

    def names(self) -> tuple[str, ...]:
        """Every tensor to be read once, in the decoder's order; with tied embeddings without lm_head.weight."""
        return tuple(self._tensors)

    def nbytes(self, name: str) -> int:
        """Size of the tensor in its file."""
        return self._tensors[name].nbytes

    @property
    def total_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def load(self, name: str) -> torch.Tensor:
        """The tensor as stored (bfloat16, float16 or float32): a view of the file's memory map, nothing is copied.

        Do not write to it. The map lives as long as the tensor does, and each call makes its own, so that a caller who
        converts and lets go has the pages back at once: loading a model never maps more than the tensor in hand.
        """
        if name not in self._tensors:
            raise KeyError(f"the checkpoint has no tensor {name!r}")
        return _read(self._tensors[name])

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor), one at a time."""
        for name in self._tensors:
            yield name, self.load(name)


def open_weights(folder: str | Path, config: ModelConfig) -> Weights:
    """Check every tensor of the checkpoint against `config`, from the headers alone, and give access to them.

    folder: one `model.safetensors`, or the shards that `model.safetensors.index.json` names. Names may begin with
    `model.` or `model.language_model.`.

    Raises TtkernError naming file and tensor: missing, unknown, stored twice, of a wrong shape or dtype; a file that is
    missing, truncated or not safetensors; an lm_head that differs from the embedding it is tied to.
    """
    folder = Path(folder)
    stored = _read_files(folder)
    tensors, skipped = _sort_out(stored)
    expected = expected_tensors(config)
    head = tensors.pop(LM_HEAD, None) if config.tie_word_embeddings else None
    for name, tensor in tensors.items():
        if name not in expected:
            raise TtkernError(
                f"{tensor.place}: unknown; a model of these shapes ({folder / 'config.json'}) has no such tensor"
            )
    for name, shape in expected.items():
        if name not in tensors:
            raise TtkernError(f"{_source(folder)}: tensor {name} of shape {list(shape)} is missing")
        _check_stored(tensors[name], shape)
    if head is not None:
        _check_stored(head, expected[EMBEDDING])
        _check_tied(head, tensors[EMBEDDING])
    files = tuple(dict.fromkeys(tensor.file for tensor in stored))
    return Weights({name: tensors[name] for name in expected}, skipped, files)


def _source(folder: Path) -> Path:
    """The file that says which tensors there are. A single file goes first where both lie there, as in transformers."""
    return folder / (SINGLE_FILE if (folder / SINGLE_FILE).exists() else INDEX_FILE)


def _read_files(folder: Path) -> list[StoredTensor]:
    source = _source(folder)
    if source.name == SINGLE_FILE:
        return list(read_header(source).values())
    if not source.exists():
        raise TtkernError(
            f"{folder}: has neither {SINGLE_FILE} nor {INDEX_FILE}; weights are read from safetensors files only"
        )
    weight_map = read_json_object(source, "the list of shards").get("weight_map")
    named = isinstance(weight_map, dict) and all(isinstance(shard, str) for shard in weight_map.values())
    if not weight_map or not named:
        raise TtkernError(f"{source}: weight_map must be an object of tensor names and their files")
    found: dict[str, StoredTensor] = {}
    for shard in dict.fromkeys(weight_map.values()):
        if Path(shard).name != shard:
            raise TtkernError(f"{source}: weight_map names the file {shard!r}; it must lie in the same folder")
        path = folder / shard
        if not os.path.isfile(path):  # False, not an error, for a name that no file can have
            name = next(name for name, file in weight_map.items() if file == shard)
            raise TtkernError(f"{path}: not found; {INDEX_FILE} puts tensor {shown(name)} there")
        for name, tensor in read_header(path).items():
            if name in found:
                raise TtkernError(f"{tensor.place}: stored twice, also in {found[name].file.name}")
            if weight_map.get(name) != shard:
                says = f"in {weight_map[name]}" if name in weight_map else "nowhere"
                raise TtkernError(f"{tensor.place}: {INDEX_FILE} says it is {says}")
            found[name] = tensor
    for name, shard in weight_map.items():
        if name not in found:
            raise TtkernError(f"{folder / shard}: tensor {shown(name)} is missing, though {INDEX_FILE} puts it there")
    return list(found.values())


def _sort_out(stored: list[StoredTensor]) -> tuple[dict[str, StoredTensor], dict[str, int]]:
    """By name without prefix; and how many belong to each part that is not run."""
    tensors: dict[str, StoredTensor] = {}
    skipped: dict[str, int] = {}
    for tensor in stored:
        part = next((part for part, prefixes in _SKIPPED.items() if tensor.name.startswith(prefixes)), None)
        if part is not None:
            skipped[part] = skipped.get(part, 0) + 1
            continue
        name = _canonical(tensor.name)
        if name is None:
            wanted = " or ".join(reversed(_PREFIXES))
            raise TtkernError(f"{tensor.place}: unknown; names begin with {wanted}, or it is {LM_HEAD}")
        if name in tensors:
            raise TtkernError(
                f"{tensor.place}: stored twice, also as {tensors[name].name} in {tensors[name].file.name}"
            )
        tensors[name] = tensor
    return tensors, skipped


def _canonical(name: str) -> str | None:
    if name == LM_HEAD:
        return name
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    if prefix is None or name == prefix + LM_HEAD:
        return None
    return name[len(prefix) :]


def _check_stored(tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise TtkernError(f"{tensor.place}: shape {list(tensor.shape)}; config.json makes it {list(shape)}")
    if tensor.dtype not in _DTYPES:
        raise TtkernError(f"{tensor.place}: dtype {tensor.dtype}; weights are read from {', '.join(_DTYPES)}")


def _read(tensor: StoredTensor) -> torch.Tensor:
    try:
        with safe_open(str(tensor.file), framework="pt") as file:
            return file.get_tensor(tensor.name)
    except (SafetensorError, OSError) as error:
        raise TtkernError(f"{tensor.place}: cannot be read: {str(error).splitlines()[0]}") from None


def _check_tied(head: StoredTensor, embedding: StoredTensor) -> None:
    """Bit for bit, in pieces: a real lm_head has gigabytes, and equal NaNs are equal here."""
    one, other = _read(head), _read(embedding)
    rows = max(1, _COMPARED_BYTES // (4 * one.shape[1]))
    for first in range(0, one.shape[0], rows):
        if not _same(one[first : first + rows], other[first : first + rows]):
            raise TtkernError(
                f"{head.place}: differs from the embedding, though config.json has tie_word_embeddings true"
            )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.float().view(torch.int32), other.float().view(torch.int32))
