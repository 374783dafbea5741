"""The command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ttkern import __version__
from ttkern.errors import TtkernError
from ttkern.serve.options import Dtype, KvCacheDtype, ServeOptions
from ttkern.targets import TARGETS, default_target

app = typer.Typer(
    name="ttkern",
    help="Write a prefill path once against ttnn; see it proven, measured and served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


MODEL = typer.Option(help="Checkpoint folder: config.json, safetensors, tokenizer.json.")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ttkern {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def serve(
    model: Annotated[Path, MODEL],
    target: Annotated[
        str | None,
        typer.Option(
            help=f"Where ttnn calls go: {', '.join(TARGETS)}.", show_default="silicon with a card, else emulated"
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name that requests give.", show_default="the folder's name")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Longest sequence, prompt and answer, in tokens.", show_default="the model's limit"),
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences decoded together.")] = 8,
    chunk_tokens: Annotated[int, typer.Option(help="Tokens of a full prefill chunk.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens of a KV block.")] = 64,
    dtype: Annotated[Dtype, typer.Option(help="float32 is the exact mode: no value is rounded.")] = "bfloat16",
    kv_cache_dtype: Annotated[KvCacheDtype, typer.Option(help="dtype of the KV cache; auto is bfloat16.")] = "auto",
    kv_cache_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that the KV pool holds.", show_default="max-num-seqs sequences of max-model-len"),
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Skip the prefill of what was sent before.",
            show_default="on where it can work",
        ),
    ] = None,
    snapshot_bytes: Annotated[int, typer.Option(help="Host memory for the states that this takes.")] = 4 << 30,
    snapshot_device_bytes: Annotated[int, typer.Option(help="Device memory for the same.")] = 0,
    cost_table: Annotated[
        Path | None,
        typer.Option(help="JSON of what prefill steps cost, for the planner.", show_default="exact buckets first"),
    ] = None,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="No traces: every step is dispatched op by op.")
    ] = False,
    trace_region_size: Annotated[
        int, typer.Option(help="Bytes of DRAM for traces, on real targets; `check --target simulated` tells how many.")
    ] = 0,
    watchdog_seconds: Annotated[
        float, typer.Option(help="silicon: stop, naming the op, when the device takes longer over one; 0: never.")
    ] = 0,
) -> None:
    """Serve a checkpoint of the Qwen3.5 family over an OpenAI-compatible HTTP API."""
    options = ServeOptions(
        model=model,
        target=target or default_target(),
        host=host,
        port=port,
        served_model_name=served_model_name,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        chunk_tokens=chunk_tokens,
        block_size=block_size,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_tokens=kv_cache_tokens,
        enable_prefix_caching=enable_prefix_caching,
        snapshot_bytes=snapshot_bytes,
        snapshot_device_bytes=snapshot_device_bytes,
        cost_table=cost_table,
        enforce_eager=enforce_eager,
        trace_region_size=trace_region_size,
        watchdog_seconds=watchdog_seconds,
    )
    from ttkern.serve.launch import launch  # torch takes a second to import; --help should not wait for it

    launch(options)


@app.command()
def check(
    model: Annotated[str, typer.Option(help="Preset name, or a checkpoint folder whose config.json is read.")],
    target: Annotated[
        str, typer.Option(help="mock: legality, memory, host cost. simulated: traces, on ttsim.")
    ] = "mock",
    weight_dtype: Annotated[str, typer.Option(help="bfloat16, bfloat8_b or bfloat4_b.")] = "bfloat8_b",
    max_model_len: Annotated[int, typer.Option(help="Longest sequence, in tokens.")] = 8192,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences decoded together.")] = 8,
    chunk_tokens: Annotated[int, typer.Option(help="Tokens of a full prefill chunk.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens of a KV block.")] = 64,
    kv_cache_dtype: Annotated[KvCacheDtype, typer.Option(help="dtype of the KV cache; auto is bfloat16.")] = "auto",
    kv_cache_tokens: Annotated[
        int | None, typer.Option(help="Tokens that the KV pool holds.", show_default="one sequence of max-model-len")
    ] = None,
    trace_region_size: Annotated[int, typer.Option(help="Bytes of DRAM for traces, on a simulator.")] = 1 << 30,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Check again, even if nothing has changed since the last time.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Ask real ttnn whether every op and the whole decoder are legal and fit; no weights are needed.

    On the mock board (the default): every op and path, memory, host time. On ttsim, which TT_METAL_SIMULATOR names:
    every trace captured and replayed, and the trace region that the model needs.

    Exit code 1 if anything was refused.
    """
    sizes = ServeOptions(
        model=Path(model),
        target=target,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        chunk_tokens=chunk_tokens,
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_tokens=kv_cache_tokens,
        trace_region_size=trace_region_size,
    )
    from ttkern.evidence.check_command import run_check

    if not run_check(model, sizes, weight_dtype, as_json=json, fresh=fresh):
        raise typer.Exit(1)


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="JSONL trace; the format is in ttkern/replay/trace.py.")],
    model: Annotated[Path, MODEL],
    target: Annotated[str, typer.Option(help="Where ttnn calls go.")] = "emulated",
    max_model_len: Annotated[int | None, typer.Option(help="Longest sequence, in tokens.")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences decoded together.")] = 8,
    chunk_tokens: Annotated[int, typer.Option(help="Tokens of a full prefill chunk.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens of a KV block.")] = 64,
    kv_cache_tokens: Annotated[int | None, typer.Option(help="Tokens that the KV pool holds.")] = None,
    enable_prefix_caching: Annotated[
        bool | None, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="As for serve.")
    ] = None,
    snapshot_bytes: Annotated[int, typer.Option(help="Host memory for states.")] = 4 << 30,
    snapshot_device_bytes: Annotated[int, typer.Option(help="Device memory for states.")] = 0,
    record: Annotated[Path | None, typer.Option(help="Write what was measured to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Replay a recorded or generated workload in process: TTFT, makespan, tokens skipped."""
    options = ServeOptions(
        model=model,
        target=target,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        chunk_tokens=chunk_tokens,
        block_size=block_size,
        kv_cache_tokens=kv_cache_tokens,
        enable_prefix_caching=enable_prefix_caching,
        snapshot_bytes=snapshot_bytes,
        snapshot_device_bytes=snapshot_device_bytes,
    )
    from ttkern.replay.command import run_replay

    run_replay(trace, options, as_json=json, record=record)


@app.command()
def recall(
    model: Annotated[Path, MODEL],
    target: Annotated[str, typer.Option(help="Where ttnn calls go.")] = "emulated",
    chunks: Annotated[int, typer.Option(help="Longest distance of a fact, in chunks of 128 tokens.")] = 8,
    each: Annotated[int, typer.Option(help="Questions of every distance.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the questions.")] = 0,
    defects: Annotated[int, typer.Option(help="Questions asked under each planted defect; 0: none is planted.")] = 0,
    chunk_tokens: Annotated[int, typer.Option(help="Tokens of a full prefill chunk.")] = 128,
    dtype: Annotated[Dtype, typer.Option(help="float32 is the exact mode: no value is rounded.")] = "bfloat16",
    kv_cache_dtype: Annotated[KvCacheDtype, typer.Option(help="dtype of the KV cache; auto is bfloat16.")] = "auto",
    plot: Annotated[Path | None, typer.Option(help="Draw recall against distance into this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every question as JSON.")] = False,
) -> None:
    """Ask for facts stated earlier, cold and through a prefix hit: recall by distance, by place, under defects."""
    options = ServeOptions(
        model=model,
        target=target,
        max_model_len=2048,
        chunk_tokens=chunk_tokens,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
    )
    from ttkern.demo.recall_command import run_recall

    run_recall(options, chunks=chunks, each=each, seed=seed, defects=defects, plot=plot, as_json=json)


ops_app = typer.Typer(help="The registry of ops, variants and cases.", invoke_without_command=True)
app.add_typer(ops_app, name="ops")


@ops_app.callback()
def list_ops(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print the registry as JSON.")] = False,
) -> None:
    """Print every op with its variants and cases, and what each target can tell of them."""
    if context.invoked_subcommand is not None:
        return
    from ttkern.bench.ops_command import run_ops

    run_ops(as_json=json)


@ops_app.command("new")
def new_op(name: Annotated[str, typer.Argument(help="Lower-case letters, digits and _.")]) -> None:
    """Lay out the folder of a new op: registered, working, to be filled in."""
    from ttkern.bench.ops_command import new_op as lay_out

    typer.echo(f"{lay_out(name)}: an op that works; its cases are tested, timed and checked from now on")


@app.command()
def bench(
    op: Annotated[str, typer.Argument(help="An op of `ttkern ops`.")],
    variants: Annotated[
        str | None, typer.Option(help="Names, separated by commas; the first is what the others are compared with.")
    ] = None,
    case: Annotated[str, typer.Option(help="A case of the op.")] = "small",
    target: Annotated[str, typer.Option(help="Where ttnn calls go.")] = "emulated",
    pairs: Annotated[int, typer.Option(help="Interleaved rounds.")] = 300,
    margin: Annotated[float, typer.Option(help="A difference within it is none that matters.")] = 0.02,
    against: Annotated[
        str | None, typer.Option(help="A revision: compare this tree with it, each in processes of its own.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Write what was measured, raw samples too, to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Judge variants of an op, then time them in interleaved rounds: ratio, interval, verdict."""
    from ttkern.bench.command import run_bench

    run_bench(
        op, variants, case=case, target=target, pairs=pairs, margin=margin, against=against, record=record, as_json=json
    )


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A record of `ttkern bench`, or pytest-benchmark's JSON.")],
    second: Annotated[Path, typer.Argument(help="Another one, of the same machine.")],
    threshold: Annotated[
        list[str] | None, typer.Option(help="How much slower may be: 0.05 for all, NAME=0.1 for some.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Is the second run slower? Exit code 0: no; 1: yes, or a row is missing; 2: they cannot be compared."""
    from ttkern.bench.compare_command import run_compare

    raise typer.Exit(run_compare(first, second, threshold or [], as_json=json))


records_app = typer.Typer(help="What was measured, and whether its sources are still the same.", no_args_is_help=True)
app.add_typer(records_app, name="records")
PLACES = typer.Argument(help="Record files, or folders of them.", show_default="profiles and traces")


@records_app.command("list")
def list_records(
    places: Annotated[list[Path] | None, PLACES] = None,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Every record, and what is stale of it."""
    from ttkern.evidence.records_command import default_places
    from ttkern.evidence.records_command import list_records as run

    run(places or default_places(), as_json=json)


@records_app.command("show")
def show_record(path: Annotated[Path, typer.Argument(help="A record file.")]) -> None:
    """One record without its raw samples."""
    from ttkern.evidence.records_command import show_record as run

    run(path)


@records_app.command("verify")
def verify_records(
    places: Annotated[list[Path] | None, PLACES] = None,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """As list; exit code 1 if a source that any record depends on has changed."""
    from ttkern.evidence.records_command import default_places
    from ttkern.evidence.records_command import list_records as run

    raise typer.Exit(run(places or default_places(), as_json=json))


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> None:
    """Say what is installed and which targets can open, and why the others cannot. Exit code 1 if none can."""
    from ttkern.doctor import run_doctor

    if not run_doctor(as_json=json):
        raise typer.Exit(1)


def main() -> None:
    """Entry point. Bad input is one line on stderr and exit code 1, a wrong command line 2, Ctrl-C 130."""
    # Read when torch is imported: threads that wait by spinning slow everything down once the cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except TtkernError as error:
        typer.echo(f"ttkern: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
