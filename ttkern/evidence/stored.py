"""Reports kept in the user's cache folder, found again by what they were made from: sources, library and options."""

from __future__ import annotations

import hashlib
import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import TypeAdapter, ValidationError

import ops
import ttkern
from ttkern.targets.real.overlay import cache_folder

T = TypeVar("T")


def fingerprint(library: Path, *options: object) -> str:
    """Changes with any source of ttkern or of an op, ttnn's installed files, Python, torch and the options."""
    versions = (platform.python_version(), torch.__version__, platform.node(), source_hash())
    digest = hashlib.sha256(repr((versions, options)).encode())
    for path in _binaries(library):
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def source_hash() -> str:
    """Of every source of ttkern and of its ops."""
    digest = hashlib.sha256()
    for package in (ttkern, ops):
        for path in sorted(Path(package.__file__ or "").parent.rglob("*")):
            if path.suffix in (".py", ".sh", ".yaml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _binaries(library: Path) -> Iterable[Path]:
    return sorted([*library.glob("*.so"), *library.glob("*.py"), *library.glob("build/**/*.so")])


def load(kind: type[T], key: str) -> T | None:
    """The report of that key; None where there is none, or none that can be read."""
    try:
        return TypeAdapter(kind).validate_json(_path(key).read_bytes())
    except (OSError, ValidationError):
        return None


def save(report: object, key: str) -> None:
    """Keep a report. A cache folder that cannot be written keeps nothing."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
            part = Path(folder, path.name)
            part.write_bytes(TypeAdapter(type(report)).dump_json(report))
            part.replace(path)
    except OSError:
        return


def _path(key: str) -> Path:
    return cache_folder() / "reports" / f"{key}.json"
