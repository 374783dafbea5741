"""From options to a server that answers: target, model, traces, engine, HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import track as show_progress

from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.planner import CostTable
from ttkern.engine.runner import DeviceRunner, RunnerConfig
from ttkern.errors import TtkernError
from ttkern.model.config import ModelConfig
from ttkern.model.load import LoadedModel, load_model
from ttkern.serve.app import create_app
from ttkern.serve.engine_loop import EngineLoop
from ttkern.serve.greeting import greeting
from ttkern.serve.options import ServeOptions
from ttkern.serve.server import bind, run
from ttkern.serve.sizes import runner_config
from ttkern.targets import Target, abilities, open_target


def launch(options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises TtkernError for whatever a person can mend."""
    console = Console(stderr=True)
    model_config = ModelConfig.from_folder(options.model)  # before a port is taken or a device opened
    limits = runner_config(options, model_config)
    costs = None if options.cost_table is None else CostTable.from_file(options.cost_table)
    listener = bind(options.host, options.port)
    with listener:
        target = open_device(options)
        loaded, runner = load(options, limits, target, console)
        console.print(options, limits, highlight=False)
        for part, count in loaded.skipped.items():
            console.print(f"skipped {count} tensors of the {part}, which is not run", highlight=False)
        console.print(caching_line(runner), highlight=False)
        console.print(f"traces: {', '.join(trace.name for trace in runner.traces)}", highlight=False)
        name = options.served_model_name or options.model.resolve().name
        app = create_app(
            EngineLoop(Engine(runner, loaded.tokenizer, EngineConfig(costs=costs))),
            loaded.tokenizer,
            loaded.chat_template,
            name,
        )
        host, port = listener.getsockname()[:2]
        print(greeting(host, port, name), flush=True)
        run(app, listener)
        target.close()


def open_device(options: ServeOptions) -> Target:
    """The target that the options name. Raises TtkernError where it cannot open, or would serve noise."""
    if not abilities(options.target).computes:
        raise TtkernError(f"--target {options.target} computes nothing here, so there is nothing to serve")
    target = open_target(
        options.target,
        exact=options.dtype == "float32",
        trace_region_size=options.trace_region_size,
        watchdog_seconds=options.watchdog_seconds,
    )
    return replace(target, has_trace=False) if options.enforce_eager else target


def caching_line(runner: DeviceRunner) -> str:
    """What is printed of the prefix cache at start."""
    if not runner.keeps_snapshots:
        return "prefix cache: off"
    return (
        f"prefix cache: {runner.num_device_snapshots} states on the device and {runner.num_host_snapshots} in host"
        f" memory, {runner.snapshot_bytes / 2**20:,.1f} MiB each; the shortest prompt that leaves something to resume"
        f" from has {runner.chunk_tokens} tokens, the shortest that can resume {runner.chunk_tokens + 1}"
    )


def load(
    options: ServeOptions, limits: RunnerConfig, target: Target, console: Console
) -> tuple[LoadedModel, DeviceRunner]:
    """Weights onto the device, then buffers, programs and traces, each with a progress bar."""

    def track(items: Iterable[Any], what: str) -> Iterator[Any]:
        listed = list(items)
        yield from show_progress(listed, what, console=console)

    try:
        loaded = load_model(
            options.model,
            target,
            max_model_len=limits.max_model_len,
            attention_chunk=limits.attention_chunk,
            track=track,
        )
        runner = DeviceRunner(loaded.decoder, limits)
        runner.start(track)
        return loaded, runner
    except RuntimeError as error:  # what ttnn refuses, here mostly memory
        first = str(error).strip().splitlines()[0]
        sizes = ", ".join(f"{f.name} {getattr(limits, f.name)}" for f in dataclasses.fields(limits))
        raise TtkernError(f"the device refuses the model as laid out ({sizes}): {first}") from error
