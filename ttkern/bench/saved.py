"""Saved runs as rows of raw samples: records of `ttkern bench`, and pytest-benchmark's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttkern.errors import TtkernError
from ttkern.evidence.records import read_record


@dataclass(frozen=True)
class Row:
    """One benchmark of a run: what was timed in which way, and seconds per call."""

    config: Mapping[str, Any]
    samples: list[float]


@dataclass(frozen=True)
class Run:
    """A file's rows by name, and where and how they were measured."""

    path: Path
    method: str
    machine: Mapping[str, Any]
    rows: dict[str, Row]


def read_run(path: Path) -> Run:
    """Raises TtkernError, one line naming the file, for anything that is neither."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TtkernError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TtkernError(f"{path}: is not JSON: {error}") from error
    try:
        if isinstance(content, dict) and "benchmarks" in content:
            return _pytest_benchmark(path, content)
        return _record(path, read_record(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise TtkernError(f"{path}: is no saved run: {type(error).__name__}: {error}") from None


def _record(path: Path, record: dict[str, Any]) -> Run:
    if record["kind"] != "bench":
        raise TtkernError(f"{path}: is a record of {record['kind']!r}; runs of `ttkern bench` are compared")
    config = record["config"]
    same = {name: value for name, value in config.items() if name not in ("arms", "method", "calls_per_sample")}
    rows = {f"{config['op']}/{arm}": Row(same, times) for arm, times in record["samples_s"].items()}
    return Run(path, f"ttkern bench, {config['method']}", record["machine"], rows)


def _pytest_benchmark(path: Path, content: dict[str, Any]) -> Run:
    machine = content["machine_info"]
    rows = {}
    for one in content["benchmarks"]:
        samples = one["stats"].get("data")
        if not samples:
            raise TtkernError(f"{path}: {one['name']} has no raw samples; save runs with --benchmark-save-data")
        rows[one["fullname"]] = Row({"params": one.get("params"), "target": one["extra_info"].get("target")}, samples)
    kept = {"cpu": machine["cpu"].get("brand_raw"), **{k: machine[k] for k in ("machine", "python_version", "system")}}
    return Run(path, "pytest-benchmark", kept, rows)
