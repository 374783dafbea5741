"""`ttkern bench`: from options to a table and a record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import track as show_progress
from rich.table import Table

from ttkern.bench.pairs import MIN_PAIRS
from ttkern.bench.run import bench_against, bench_variants, find
from ttkern.errors import TtkernError
from ttkern.evidence.records import write_record
from ttkern.output import draw, own_stdout, write
from ttkern.targets import open_target


def run_bench(
    op_name: str,
    variants: str | None,
    *,
    case: str,
    target: str,
    pairs: int,
    margin: float,
    against: str | None,
    record: Path | None,
    as_json: bool,
) -> None:
    """Judge, time, compare, print, and keep. Raises TtkernError for what cannot be timed, wrong variants among it.

    variants  names, separated by commas (None: all that the target can run)
    """
    import torch

    if pairs < MIN_PAIRS:
        raise TtkernError(f"--pairs is {pairs}; fewer than {MIN_PAIRS} say nothing")
    if not 0 <= margin < 1:
        raise TtkernError(f"--margin is {margin:g}; it must be at least 0 and less than 1, such as 0.02")
    op, found_case = find(op_name, case)
    names = [name.strip() for name in variants.split(",")] if variants else list(op.variants)
    for name in names:
        if name not in op.variants:
            raise TtkernError(f"{op.name} has no variant {name!r}; it has {', '.join(op.variants)}")
    console = Console(stderr=True)

    def track(items: Iterable[Any], what: str) -> Iterator[Any]:
        yield from show_progress(list(items), what, console=console)

    out = own_stdout()
    torch.set_num_threads(1)  # threads that wait for each other are what scatters most
    if against is not None:
        if len(names) != 1:
            raise TtkernError(f"--against compares one variant of {op.name}; name it with --variants")
        kept = bench_against(against, target, op, names[0], found_case, pairs, track, margin)
    else:
        opened = open_target(target)
        try:
            kept = bench_variants(opened, op, names, found_case, pairs, track, margin)
        finally:
            opened.close()
    if record is not None:
        write_record(record, kept)
    if as_json:
        write(json.dumps(kept), out)
    else:
        draw(lambda on: show(kept, on), out)


def show(kept: dict[str, Any], console: Console) -> None:
    """Times, then the ratio of each arm to the first with its interval and verdict."""
    config, first = kept["config"], kept["config"]["arms"][0]
    table = Table(title=f"{config['op']}, {config['case']}, on {config['target']}: {kept['meaning']}")
    table.add_column("arm")
    for column in ("us per call, median", "first call, us", "x roofline of a p150"):
        table.add_column(column, justify="right")
    bound = kept["roofline_s"]["p150"]["seconds"]
    for name, times in kept["samples_s"].items():
        middle = median(times)
        fraction = f"{middle / bound:,.1f}" if config["target"] == "silicon" else "no card's time"
        table.add_row(name, f"{1e6 * middle:,.1f}", f"{1e6 * kept['first_call_s'][name]:,.0f}", fraction)
    console.print(table)
    for name, found in kept["comparisons"].items():
        console.print(
            f"{name} against {first}: {found['outcome']}, {found['ratio']:.3f}x ({found['confidence']:.0%}:"
            f" {found['low']:.3f} to {found['high']:.3f}), {found['reason']}; an effect of {found['detectable']:.1%} is"
            " found in 4 of 5 such runs",
            highlight=False,
        )
    cost, card = kept["algorithm"], kept["roofline_s"]["p150"]
    pairs = len(next(iter(kept["samples_s"].values())))
    console.print(
        f"{pairs} interleaved rounds of {config['calls_per_sample']} calls; judged on {kept['judged_on']}",
        highlight=False,
    )
    console.print(
        f"the algorithm moves {cost['bytes']:,} bytes and computes {cost['flops']:,} FLOPs: on a p150 at least"
        f" {1e6 * card['seconds']:,.2f} us ({card['bandwidth'] / 1e9:.0f} GB/s, {card['flops'] / 1e12:.0f} TFLOP/s)",
        highlight=False,
    )
