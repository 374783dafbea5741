"""`ttkern replay`: a trace against a model in process, a table, and a record."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.evidence.records import all_sources, new_record, write_record
from ttkern.model.config import ModelConfig
from ttkern.output import draw, write
from ttkern.replay.run import Row, replay
from ttkern.replay.trace import read_trace
from ttkern.serve.launch import load, open_device
from ttkern.serve.options import ServeOptions
from ttkern.serve.sizes import runner_config


def run_replay(trace: Path, options: ServeOptions, *, as_json: bool, record: Path | None) -> None:
    """Replay and print. Raises TtkernError for a trace or options that cannot be replayed."""
    console = Console(stderr=True)
    requests = read_trace(trace)
    limits = runner_config(options, ModelConfig.from_folder(options.model))
    target = open_device(options)
    loaded, runner = load(options, limits, target, console)
    engine = Engine(runner, loaded.tokenizer, EngineConfig(prefix_caching=runner.keeps_snapshots))
    with console.status(f"replaying {len(requests)} requests"):
        rows = replay(engine, requests)
    target.close()
    found = new_record(
        "replay",
        {
            "trace": {"file": trace.name, "sha256": hashlib.sha256(trace.read_bytes()).hexdigest()},
            **{name: str(value) for name, value in asdict(options).items()},
        },
        all_sources(),
        reuse=asdict(engine.stats().reuse),
        summary=summary(rows),
        rows=[asdict(row) for row in rows],
    )
    if record is not None:
        write_record(record, found)
    if as_json:
        write(json.dumps(found))
    else:
        draw(lambda on: show(trace.name, found["summary"], rows, options.target, on))


def summary(rows: list[Row]) -> dict[str, Any]:
    """Totals, and times in seconds."""
    ttft = [row.ttft for row in rows]
    between = [(r.end - r.first_token) / (r.output_tokens - 1) for r in rows if r.output_tokens > 1]
    return {
        "requests": len(rows),
        "prompt_tokens": sum(row.prompt_tokens for row in rows),
        "cached_tokens": sum(row.cached_tokens for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
        "makespan_s": max(row.end for row in rows) - min(row.arrival for row in rows),
        "ttft_mean_s": float(np.mean(ttft)),
        "ttft_p50_s": float(np.percentile(ttft, 50)),
        "ttft_p95_s": float(np.percentile(ttft, 95)),
        "tpot_mean_s": float(np.mean(between)) if between else None,
    }


def show(name: str, total: dict[str, Any], rows: list[Row], target: str, console: Console) -> None:
    """The summary, and the requests one by one."""
    table = Table(title=f"{name} on {target}" + ("" if target == "silicon" else ": not a card's times"))
    table.add_column("")
    table.add_column("", justify="right")
    cached, asked = total["cached_tokens"], total["prompt_tokens"]
    table.add_row("requests", f"{total['requests']:,}")
    table.add_row("prompt tokens", f"{asked:,}")
    table.add_row("whose prefill was skipped", f"{cached:,} ({cached / asked:.1%})")
    for what, key in (("makespan", "makespan_s"), ("TTFT, mean", "ttft_mean_s"), ("TTFT, p95", "ttft_p95_s")):
        table.add_row(what, f"{total[key]:.3f} s")
    if total["tpot_mean_s"] is not None:
        table.add_row("time per output token", f"{1e3 * total['tpot_mean_s']:.1f} ms")
    console.print(table)
    each = Table()
    for column in ("session", "turn", "prompt", "cached", "arrival s", "TTFT s", "end s"):
        each.add_column(column, justify="left" if column == "session" else "right")
    for row in rows:
        times = (f"{row.arrival:.2f}", f"{row.ttft:.3f}", f"{row.end:.2f}")
        each.add_row(row.session, str(row.turn), f"{row.prompt_tokens:,}", f"{row.cached_tokens:,}", *times)
    console.print(each)
