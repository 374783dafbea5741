"""`ttkern records list|show|verify`: what is kept, and what has gone stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ttkern.errors import TtkernError
from ttkern.evidence.records import read_record, stale
from ttkern.output import draw, write


def default_places() -> list[Path]:
    """Where the project keeps its own, as far as they are there."""
    return [path for path in (Path("profiles"), Path("traces")) if path.is_dir()]


def find_records(places: list[Path]) -> dict[Path, dict[str, Any]]:
    """Records by file. A folder's other JSON files are no records and left out; a file that is named must be one.

    Raises TtkernError for a place that does not exist.
    """
    found = {}
    for place in places:
        if not place.exists():
            raise TtkernError(f"{place}: does not exist")
        if place.is_file():
            found[place] = read_record(place)
            continue
        for path in sorted(place.rglob("*.json")):
            try:
                found[path] = read_record(path)
            except TtkernError:
                continue
    return found


def list_records(places: list[Path], *, as_json: bool) -> int:
    """Print every record with what is stale of it; 1 if any is."""
    records = find_records(places)
    rows = [(path, record, stale(record)) for path, record in records.items()]
    if as_json:
        write(
            json.dumps([{"path": str(p), "kind": r["kind"], "measured": r["measured"], "stale": s} for p, r, s in rows])
        )
    else:
        draw(lambda on: _show(rows, on))
    return int(any(changed for *_, changed in rows))


def show_record(path: Path) -> None:
    """Print one, without its raw samples."""
    record = read_record(path)
    short = {name: value for name, value in record.items() if name not in ("samples_s", "rows", "groups")}
    write(json.dumps(short, indent=1))


def _show(rows: list[tuple[Path, dict[str, Any], list[str]]], console: Console) -> None:
    table = Table(title=f"{len(rows)} records")
    for column in ("record", "kind", "measured", "sources"):
        table.add_column(column, overflow="fold")
    for path, record, changed in rows:
        said = f"[red]stale: {', '.join(changed)}" if changed else "as measured"
        table.add_row(str(path), record["kind"], record["measured"], said)
    console.print(table)
