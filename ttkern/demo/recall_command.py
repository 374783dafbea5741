"""`ttkern recall`: tables, a plot, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console
from rich.progress import track as show_progress
from rich.table import Table

from ttkern.demo.recall import Answered, Rate, ask, median_margin, questions, rate, sensitivity
from ttkern.errors import TtkernError
from ttkern.model.config import ModelConfig
from ttkern.output import draw, write
from ttkern.serve.launch import load, open_device
from ttkern.serve.options import ServeOptions
from ttkern.serve.sizes import runner_config

PLACES = ("cached prefix", "tail")


def run_recall(
    options: ServeOptions, *, chunks: int, each: int, seed: int, defects: int, plot: Path | None, as_json: bool
) -> None:
    """Ask, and print how much was recalled.

    chunks   longest distance, in chunks of 128 tokens; `each` questions of every distance
    defects  questions asked under each planted defect (0: none is planted)

    Raises TtkernError for options that cannot be served.
    """
    for name, value, least in (("chunks", chunks, 1), ("each", each, 1), ("defects", defects, 0)):
        if value < least:
            raise TtkernError(f"--{name} is {value}; it must be at least {least}")
    console = Console(stderr=True)
    limits = runner_config(options, ModelConfig.from_folder(options.model))

    def track(items: Iterable[Any], what: str) -> Iterator[Any]:
        yield from show_progress(list(items), what, console=console)

    target = open_device(options)
    loaded, runner = load(options, limits, target, console)
    asked = questions(loaded.tokenizer.path, chunks, each, seed)
    longest = max(len(one.prompt) + len(one.reply) for one in asked)
    if longest > runner.max_model_len:
        raise TtkernError(
            f"--chunks is {chunks}: {longest} tokens with the answer; the model reads {runner.max_model_len}"
        )
    rows = ask(runner, loaded.tokenizer, asked, track)
    under = sensitivity(runner, loaded.tokenizer, defects, seed, track) if defects else {}
    target.close()
    if plot is not None:
        draw_plot(rows, plot)
    if as_json:
        write(json.dumps({"rows": [asdict(row) for row in rows], "defects": {k: asdict(v) for k, v in under.items()}}))
    else:
        draw(lambda on: show(rows, under, on))


def show(rows: list[Answered], under: dict[str, Rate], console: Console) -> None:
    """Recall by distance, by place, and under defects; 95% intervals."""
    by_distance = Table(title=f"recall, {len(rows)} questions; in brackets Wilson's interval at 95%")
    for column in ("tokens from the fact", "cold", "through a prefix hit", "margin, nats"):
        by_distance.add_column(column, justify="right")
    for distance in sorted({row.distance for row in rows}):
        part = [row for row in rows if row.distance == distance]
        span = f"{128 * (distance - 1) + 1} to {128 * distance}"
        by_distance.add_row(span, str(rate(part, False)), str(rate(part, True)), f"{median_margin(part):.1f}")
    by_distance.add_section()
    by_distance.add_row("all", str(rate(rows, False)), str(rate(rows, True)), f"{median_margin(rows):.1f}")
    console.print(by_distance)
    by_place = Table(title="by where the fact lies when the request resumes")
    for column in ("fact", "questions", "cold", "through a prefix hit"):
        by_place.add_column(column, justify="left" if column == "fact" else "right")
    groups = {f"in the {place}": [row for row in rows if row.place == place] for place in PLACES}
    groups["three turns earlier"] = [row for row in rows if row.turns]
    for name, part in groups.items():
        if part:
            by_place.add_row(name, str(len(part)), str(rate(part, False)), str(rate(part, True)))
    console.print(by_place)
    same = sum(row.same for row in rows)
    console.print(f"cold and warm answers equal, token for token: {same} of {len(rows)}", highlight=False)
    if under:
        table = Table(title="recall through a prefix hit, with a defect planted; facts in the last cached chunk")
        table.add_column("defect")
        table.add_column("recall", justify="right")
        table.add_column("lost, points", justify="right")
        whole = under["undamaged"].rate
        for name, found in under.items():
            table.add_row(name, str(found), f"{100 * (whole - found.rate):.0f}")
        console.print(table)


def draw_plot(rows: list[Answered], path: Path) -> None:
    """Recall against distance, cold and warm."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    distances = sorted({row.distance for row in rows})
    for warm, label, shift in ((False, "cold", -3), (True, "through a prefix hit", 3)):
        rates = [rate([row for row in rows if row.distance == distance], warm) for distance in distances]
        middle = [found.rate for found in rates]
        low, high = zip(*(found.interval for found in rates), strict=True)
        bars = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
        axes.errorbar([128 * d + shift for d in distances], middle, yerr=bars, fmt="o-", capsize=3, label=label)
    axes.set_xlabel("tokens from the fact to the answer, at most")
    axes.set_ylabel("recall, 95% intervals")
    axes.set_ylim(0, 1.05)
    axes.legend(loc="lower left")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise TtkernError(f"--plot {path}: {error}") from error
