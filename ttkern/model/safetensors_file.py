"""The header of a safetensors file, checked against the file before any tensor is believed.

[ 8 bytes: N, little endian ][ N bytes: JSON header ][ tensors, at offsets counted from here ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ttkern.errors import TtkernError
from ttkern.model.json_file import parse_json_object

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. name: as in the file, prefix included; dtype: in safetensors' spelling (BF16, F32, ...)."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def place(self) -> str:
        """For messages: file and tensor."""
        return f"{self.file}: tensor {shown(self.name)}"


def shown(name: str) -> str:
    """A name from a file as it may stand in a message of one line."""
    return name if name.isprintable() else ascii(name)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, by the names in the file. No tensor data is read.

    Raises TtkernError, naming the file and where it can the tensor, unless the header is whole and describes exactly
    the bytes that follow it: a truncated download is found here.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_LENGTH_BYTES)
            if len(start) < _LENGTH_BYTES:
                raise TtkernError(f"{path}: {size} bytes long, too short for a safetensors file (truncated?)")
            length = int.from_bytes(start, "little")
            if length > _MAX_HEADER_BYTES:
                raise TtkernError(f"{path}: not a safetensors file: its header would be {length} bytes long")
            if _LENGTH_BYTES + length > size:
                raise TtkernError(
                    f"{path}: truncated: {size} bytes, but its header alone ends at {_LENGTH_BYTES + length}"
                )
            raw = file.read(length)
    except FileNotFoundError:
        raise TtkernError(f"{path}: not found") from None
    except OSError as error:
        raise TtkernError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TtkernError(f"{path}: header: not UTF-8 at byte {error.start}") from None
    header = parse_json_object(text, f"{path}: header")
    header.pop("__metadata__", None)
    return _check_layout(path, header, size - _LENGTH_BYTES - length)


def _check_layout(path: Path, header: dict[str, Any], data_bytes: int) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        begin, end, tensor = _parse_entry(path, name, entry)
        tensors[name] = tensor
        spans.append((begin, end, name))
    position, last = 0, ""
    for begin, end, name in sorted(spans):
        if begin != position:
            what = f"overlaps {shown(last)}" if begin < position else "follows a gap"
            raise TtkernError(f"{path}: tensor {shown(name)}: {what}: its data begins at {begin}, not at {position}")
        if end > data_bytes:
            raise TtkernError(
                f"{path}: tensor {shown(name)}: truncated file: data ends at {end}, the file's at {data_bytes}"
            )
        position, last = end, name
    if position != data_bytes:
        raise TtkernError(f"{path}: {data_bytes - position} bytes after the last tensor belong to none")
    return tensors


def _parse_entry(path: Path, name: str, entry: Any) -> tuple[int, int, StoredTensor]:
    where = f"{path}: tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise TtkernError(f"{where}: its header entry is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise TtkernError(f"{where}: unknown dtype {dtype!r}")
    if not _is_sizes(shape):
        raise TtkernError(f"{where}: shape is {shape!r}; it must be a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2:
        raise TtkernError(f"{where}: data_offsets is {offsets!r}; it must be [begin, end]")
    nbytes = math.prod(shape) * _BITS[dtype] // 8
    if offsets[1] - offsets[0] != nbytes:
        raise TtkernError(
            f"{where}: {dtype} {list(shape)} takes {nbytes} bytes, data_offsets give {offsets[1] - offsets[0]}"
        )
    return offsets[0], offsets[1], StoredTensor(path, name, dtype, tuple(shape), nbytes)


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 62 for size in value)
