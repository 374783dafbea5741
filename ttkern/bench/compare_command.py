"""`ttkern compare A B`: is the second run slower than the first? Exit code 0 no, 1 yes, 2 it cannot be said."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ttkern.bench.pairs import Comparison, Outcome, compare_runs
from ttkern.bench.run import as_plain
from ttkern.bench.saved import Run, read_run
from ttkern.errors import TtkernError
from ttkern.output import draw, write

DEFAULT_THRESHOLD = 0.05


@dataclass(frozen=True)
class Compared:
    """One row: what the samples say, how much slower it may be, and why it fails if it does."""

    name: str
    found: Comparison | None
    threshold: float
    failure: str | None


def run_compare(first: Path, second: Path, thresholds: list[str], *, as_json: bool) -> int:
    """Compare two saved runs and print; the exit code. Raises TtkernError for files and thresholds that are none."""
    runs = read_run(first), read_run(second)
    limits = read_thresholds(thresholds)
    why = incomparable(*runs)
    rows = [] if why else compare_rows(*runs, limits)
    code = 2 if why or not rows else 1 if any(row.failure for row in rows) else 0
    if as_json:
        plain = [
            {"name": r.name, "threshold": r.threshold, "failure": r.failure, "found": r.found and as_plain(r.found)}
            for r in rows
        ]
        write(json.dumps({"incomparable": why, "rows": plain, "exit_code": code}))
    else:
        draw(lambda on: show(runs, why, rows, on))
    return code


def read_thresholds(given: list[str]) -> dict[str, float]:
    """`0.05` for all, `linear=0.1` for rows whose name begins so; the longest name counts."""
    found = {"": DEFAULT_THRESHOLD}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise TtkernError(f"--threshold is {text!r}; it must be a decimal such as 0.05, or NAME=0.05")
        found[name] = value
    return found


def incomparable(first: Run, second: Run) -> str | None:
    """Why the runs cannot be compared at all."""
    if first.method != second.method:
        return f"the method differs: {first.method}; {second.method}"
    for name in {**first.machine, **second.machine}:
        a, b = first.machine.get(name), second.machine.get(name)
        if a != b:
            return f"the machine differs in {name}: {a}; {b}"
    for name in first.rows.keys() & second.rows.keys():
        a_config, b_config = first.rows[name].config, second.rows[name].config
        if a_config != b_config:
            return f"{name} was measured otherwise: {dict(a_config)}; {dict(b_config)}"
    return None


def compare_rows(first: Run, second: Run, limits: dict[str, float]) -> list[Compared]:
    """Every row of both; one that only one run has is a failure."""
    rows = []
    for name in {**first.rows, **second.rows}:
        threshold = limits[max((key for key in limits if name.startswith(key)), key=len)]
        if name not in second.rows:
            rows.append(Compared(name, None, threshold, f"missing in {second.path}"))
        elif name not in first.rows:
            rows.append(Compared(name, None, threshold, f"missing in {first.path}: new, or renamed"))
        else:
            found = compare_runs(first.rows[name].samples, second.rows[name].samples)
            slower = found.outcome is Outcome.SLOWER and found.ratio > 1 + threshold
            rows.append(Compared(name, found, threshold, f"slower by more than {threshold:g}" if slower else None))
    return rows


def show(runs: tuple[Run, Run], why: str | None, rows: list[Compared], console: Console) -> None:
    """Rows, ratios and verdicts."""
    if why:
        console.print(f"cannot be compared: {why}", highlight=False)
        return
    if not rows:
        console.print("nothing to compare: neither run has a row", highlight=False)
        return
    table = Table(title=f"{runs[1].path.name} against {runs[0].path.name}: two runs at different times")
    table.add_column("benchmark", overflow="fold")
    for column in ("ratio", "99% interval", "may be", "verdict"):
        table.add_column(column, justify="left" if column == "verdict" else "right")
    for row in rows:
        cells: tuple[Any, ...] = ("", "", f"+{row.threshold:g}")
        if row.found is not None:
            cells = (f"{row.found.ratio:.3f}", f"{row.found.low:.3f} to {row.found.high:.3f}", f"+{row.threshold:g}")
        said = row.failure or (row.found.outcome.value if row.found is not None else "")
        table.add_row(row.name, *cells, f"[red]{said}" if row.failure else said)
    console.print(table)
