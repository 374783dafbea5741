"""Records: what was measured, by which sources, on what machine, with which options; raw samples beside the figures.

A record is a JSON file. It goes stale when a source that it depends on changes; `ttkern records verify` tells.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ops
import ttkern
from ttkern.errors import TtkernError

FORMAT = 1
ROOT = Path(ttkern.__file__).parents[1]
SUFFIXES = (".py", ".sh", ".yaml")
REQUIRED = ("format", "kind", "measured", "machine", "sources", "config")


def new_record(kind: str, config: Mapping[str, Any], depends_on: Iterable[str], **found: Any) -> dict[str, Any]:
    """A record of what was found just now.

    kind        what was done: "bench", "replay", ...
    config      everything that decides what is measured
    depends_on  source folders, such as "ops/linear", whose change makes the record stale
    """
    return {
        "format": FORMAT,
        "kind": kind,
        "measured": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine(),
        "sources": {"revision": revision(), **{name: hash_of(name) for name in sorted(set(depends_on))}},
        "config": dict(config),
        **found,
    }


def machine() -> dict[str, Any]:
    """What a time depends on beside the code."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "ttnn")},
    }


def hash_of(folder: str) -> str:
    """Of every source under a folder of the project, or of one file."""
    path, digest = ROOT / folder, hashlib.sha256()
    for part in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if part.suffix in SUFFIXES and part.is_file():
            digest.update(part.relative_to(ROOT).as_posix().encode())
            digest.update(part.read_bytes())
    return digest.hexdigest()[:16]


def all_sources() -> list[str]:
    """Every folder of sources: what a record of the whole depends on."""
    packages = (Path(ttkern.__file__).parent, Path(ops.__file__ or "").parent)
    return [p.relative_to(ROOT).as_posix() for package in packages for p in sorted(package.iterdir()) if _is_source(p)]


def _is_source(path: Path) -> bool:
    return path.suffix in SUFFIXES or (path.is_dir() and path.name != "__pycache__")


@lru_cache(maxsize=1)
def revision() -> str | None:
    """The commit, with a + where the tree differs from it; None where it is no git tree."""
    try:
        shown = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.stdout.strip() or None


def stale(record: Mapping[str, Any]) -> list[str]:
    """The sources that are not what they were when it was measured."""
    return [
        name
        for name, was in record["sources"].items()
        if name != "revision" and not ((ROOT / name).exists() and hash_of(name) == was)
    ]


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Whole or not at all. Raises TtkernError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
            part = Path(folder, path.name)
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            part.replace(path)
    except OSError as error:
        raise TtkernError(f"{path}: cannot be written: {error.strerror}") from error


def read_record(path: Path) -> dict[str, Any]:
    """Raises TtkernError, one line naming the file, for anything that is no record."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TtkernError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TtkernError(f"{path}: is not JSON: {error}") from error
    missing = [name for name in REQUIRED if not isinstance(record, dict) or name not in record]
    if missing or not isinstance(record["sources"], dict):
        raise TtkernError(f"{path}: is no record of ttkern: it lacks {', '.join(missing) or 'sources'}")
    if record["format"] != FORMAT:
        raise TtkernError(f"{path}: is a record of format {record['format']!r}; this version reads {FORMAT}")
    return record


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
