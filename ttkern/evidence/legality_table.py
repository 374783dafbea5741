"""A legality report as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ttkern.evidence.legality import GIB, Memory, Report
from ttkern.evidence.tracing import REPLAYS, TraceReport

LOWER_BOUND = "host time is a lower bound of a card's dispatch cost: writing the command queue is mocked"


def show(report: Report, console: Console) -> None:
    """Ops, paths, the calls of the longest prefill step, memory, and the verdict."""
    refused = [row for row in report.ops if row.error is not None]
    table = Table(title=f"ops: {len(report.ops) - len(refused)} of {len(report.ops)} accepted")
    for column in ("op", "variant", "case", "output", "host us"):
        table.add_column(column, justify="right" if column == "host us" else "left")
    for row in report.ops:
        said = row.outputs[0] if row.error is None else f"REFUSED: {row.error}"
        table.add_row(row.op, row.variant, row.case, said, "" if row.host_us is None else f"{row.host_us:,.0f}")
    console.print(table)
    if report.does_not_fit:
        console.print(f"{report.model} does not fit: {report.does_not_fit}", highlight=False)
    if report.paths:
        paths = Table(title=f"{report.model}, {report.layers} layers, run eagerly; {LOWER_BOUND}")
        paths.add_column("path")
        for column in ("ttnn calls", "host ms"):
            paths.add_column(column, justify="right")
        for path in report.paths:
            paths.add_row(path.path, f"{path.calls:,}", f"{path.host_ms:,.1f}")
        console.print(paths)
        longest = report.paths[0]
        calls = Table(title=f"calls of {longest.path}")
        calls.add_column("ttnn")
        for column in ("calls", "median us", "total ms"):
            calls.add_column(column, justify="right")
        for call in longest.ops:
            calls.add_row(call.name, f"{call.calls:,}", f"{call.host_us:,.0f}", f"{call.total_us / 1e3:,.1f}")
        console.print(calls)
    if report.memory is not None:
        console.print(_memory(report.memory))
    if report.refused:
        console.print(f"REFUSED: {report.refused}", highlight=False)
    console.print("accepted" if report.ok else "not accepted")


def show_traces(report: TraceReport, console: Console) -> None:
    """Traces, the region they need, and the verdict."""
    title = f"{report.model}, {report.layers} layers captured on a simulator, {REPLAYS} replays on refreshed inputs"
    table = Table(title=f"{title}; device time means nothing here")
    table.add_column("trace")
    for column in ("eager host ms", "refresh ms", "replay ms", "eager / replay", "trace kB", "whole model kB"):
        table.add_column(column, justify="right")
    for row in report.rows:
        times = (f"{row.eager_ms:,.2f}", f"{row.refresh_ms:.3f}", f"{row.replay_ms:.3f}")
        ratio = f"{row.eager_ms / row.replay_ms:,.0f}"
        table.add_row(row.path, *times, ratio, f"{row.trace_bytes / 1e3:,.0f}", f"{row.full_model_bytes / 1e3:,.0f}")
    console.print(table)
    if report.refused:
        console.print(f"REFUSED: {report.refused}", highlight=False)
    else:
        console.print(f"all traces of the whole model: --trace-region-size {report.region}", highlight=False)
        console.print(f"allocated between replays: {report.allocated} bytes", highlight=False)
    console.print("accepted" if report.ok else "not accepted")


def _memory(memory: Memory) -> Table:
    table = Table(title="DRAM of one chip, by ttnn's own allocator")
    table.add_column("what")
    table.add_column("GiB", justify="right")
    for name in ("weights", "kv_cache", "states_and_inputs", "peak", "total"):
        table.add_row(name.replace("_", " "), f"{getattr(memory, name) / GIB:,.2f}")
    table.add_row("KV tokens", f"{memory.kv_cache_tokens:,}")
    table.add_row("most KV tokens that fit", f"{memory.largest_kv_cache_tokens:,}")
    return table
