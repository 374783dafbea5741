"""Real ttnn on a mock board, each in a process of its own: what it accepts, what it refuses, and in whose words."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ttkern.errors import TtkernError
from ttkern.model.checkpoint import make_checkpoint
from ttkern.targets import open_target, run_apart
from ttkern.targets.real import overlay as overlays
from ttkern.targets.real.mock import open_mock_device

needs_ttnn = pytest.mark.skipif(
    importlib.util.find_spec("ttnn") is None, reason="ttnn is not installed here: no real library to ask"
)

REFUSALS = """
import json, sys
from ops.registry import Case, Op
from ttkern.evidence import legality
from ttkern.evidence.legality import check, check_ops
from ttkern.targets.real.library import reason
from ttkern.engine.runner import RunnerConfig
from ttkern.model.config import ModelConfig
from ttkern.targets import open_target, run_apart

target = open_target("mock")
ttnn, device = target.ttnn, target.device


def empty(*shape, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT):
    return ttnn.empty(shape, dtype=dtype, layout=layout, device=device)


RM = ttnn.ROW_MAJOR_LAYOUT
ids, table = empty(1, 32, dtype=ttnn.uint32, layout=RM), empty(1, 8, dtype=ttnn.int32, layout=RM)
cache, q = empty(9, 2, 64, 64), empty(1, 4, 64, 64)
config = ttnn.SDPAProgramConfig(
    compute_with_storage_grid_size=device.compute_with_storage_grid_size(), q_chunk_size=64, k_chunk_size=64
)
sdpa = ttnn.transformer.chunked_scaled_dot_product_attention
calls = {
    "dtype": lambda: ttnn.embedding(ids, empty(1, 1, 64, 64, dtype=ttnn.float32, layout=RM)),
    "layout": lambda: ttnn.linear(empty(32, 64, layout=RM), empty(64, 64)),
    "chunk start": lambda: sdpa(q, cache, cache, table, chunk_start_idx=33, program_config=config),
    "page table": lambda: sdpa(
        q,
        cache,
        cache,
        empty(1, 4, dtype=ttnn.int32, layout=RM),
        chunk_start_idx_tensor=empty(1, dtype=ttnn.int32, layout=RM),
        program_config=config,
    ),
}
every_op = legality.all_ops
legality.all_ops = lambda: {
    name: Op(name, None, {"planted": lambda ttnn, call=call: (call(),)}, [Case("planted", {})], [])
    for name, call in calls.items()
}
said = {row.op: row.error for row in check_ops(target, lambda items, _: items)}
legality.all_ops = every_op
x = empty(32, 32)
ttnn.add(x, x)
device.set_program_cache_misses_allowed(False)
ttnn.add(x, x)
try:
    ttnn.linear(empty(64, 96), empty(96, 32))
    said["miss"] = None
except RuntimeError as error:
    said["miss"] = reason(error)
device.set_program_cache_misses_allowed(True)
limits = RunnerConfig(max_model_len=2048, chunk_tokens=256, num_blocks=1 << 22, max_num_seqs=2)
config = ModelConfig.from_folder(sys.argv[1])
report = check(target, "tiny", config, limits, "bfloat8_b", lambda items, _: items)
said["pool"], said["layers"], said["ok"] = report.does_not_fit, report.layers, report.ok
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "m"
    make_checkpoint(path, hidden_size=64, intermediate_size=96, vocab_size=800)
    return path


def run(cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=500, check=False
    )


@needs_ttnn
@pytest.mark.slow
def test_every_op_and_the_decoder_are_accepted(folder: Path, tmp_path: Path) -> None:
    """Ops at all named cases, the 27B's among them; then a whole decoder, every path of it."""
    command = ("-m", "ttkern.cli", "check", "--model", str(folder), "--chunk-tokens", "256", "--json")
    done = run(tmp_path, *command, "--fresh")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["ok"]
    assert [row for row in report["ops"] if row["error"]] == []
    assert {row["case"] for row in report["ops"]} == {"tiny", "small", "qwen3.6-27b", "qwen3.6-27b-tp4"}
    paths = {row["path"]: row for row in report["paths"]}
    assert {"prefill_256", "prefill_128", "masked_bucket_32", "decode", "finish"} <= set(paths)
    assert paths["prefill_256"]["calls"] == sum(op["calls"] for op in paths["prefill_256"]["ops"]) > 200
    memory = report["memory"]
    assert 0 < memory["weights"] < memory["peak"] < memory["total"]
    assert memory["largest_kv_cache_tokens"] > memory["kv_cache_tokens"] == 8192
    assert list(tmp_path.iterdir()) == [], "ttnn wrote into the working directory"
    again = run(tmp_path, *command)
    assert json.loads(again.stdout) == report
    assert "sources and options are those of" in again.stderr


@needs_ttnn
@pytest.mark.slow
def test_refusals_come_in_ttnns_own_words(folder: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "-c", REFUSALS, str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert "BFLOAT16" in said["dtype"]
    assert said["layout"] == "Inputs to matmul must be tilized"
    assert "chunk" in said["chunk start"].lower()
    assert said["page table"] == "page table stick size must be a multiple of 32"
    assert said["miss"] is not None
    assert "Out of Memory" in said["pool"]
    assert (said["layers"], said["ok"]) == (2, False)


def test_without_ttnn_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TtkernError, match=r"target 'mock' needs ttnn: pip install ttnn==0\.81\.1"):
        open_target("mock")


@pytest.mark.parametrize("kind", ["null", "dispatch"])
def test_the_overlay_is_laid_once_and_known_for_what_it_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ttnn"
    (package / "runtime/hw").mkdir(parents=True)
    (package / "tt_metal").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    laid = overlays.overlay(package, kind)
    assert overlays.overlay(package, kind) == laid
    root = Path(laid.environment["TT_METAL_RUNTIME_ROOT"])
    assert (root / "tt_metal").resolve() == package / "tt_metal"
    assert overlays.is_stand_in(root)
    assert not overlays.is_stand_in(package)
    compiler = overlays.compiler_of(root)
    shown = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == overlays.VERSION_LINE
    out, dep = tmp_path / "kernel.elf", tmp_path / "kernel.d"
    subprocess.run([compiler, "-MF", dep, "-o", out], check=True)
    assert out.read_bytes()[:4] == b"\x7fELF"
    assert dep.read_text() == f"{out}:\n"
    for broken in ("kernels", "root/runtime/hw", "root/runtime/empty.elf", "root/tt_metal"):
        (laid.place / broken).rename(tmp_path / "away")
        assert overlays.overlay(package, kind) == laid
        assert (laid.place / broken).exists(), f"{broken} was not mended"
        shutil.rmtree(tmp_path / "away", ignore_errors=True)
        (tmp_path / "away").unlink(missing_ok=True)
    assert [p.name for p in (tmp_path / "cache/ttkern").iterdir()] == [laid.place.name], "something half-made was left"


@pytest.mark.parametrize("name", ["my cache", "o'clock", "$HOME", 'a"b', "a;b", "a(b)"])
def test_a_cache_folder_that_a_shell_would_read_otherwise_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    with pytest.raises(TtkernError, match="set XDG_CACHE_HOME to a plain one"):
        overlays.overlay(tmp_path, "null")


def test_a_relative_cache_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert overlays.cache_folder() == Path.home() / ".cache/ttkern"


def test_a_cache_folder_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "ttnn/runtime/hw").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(TtkernError, match="cannot make ttnn's runtime root"):
        overlays.overlay(tmp_path / "ttnn", "null")


def test_boards_are_named() -> None:
    with pytest.raises(TtkernError, match="board 'n300' is not one of p150, 4xp150, n150"):
        open_mock_device("n300")


def _board(name: str) -> tuple[str, int, int, int]:
    """Architecture, chips, cores of a chip and GiB of a chip's DRAM of a mock board; an op runs on it."""
    target = open_target("mock", board=name)
    ttnn, device = target.ttnn, target.device
    x = ttnn.empty((32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
    assert list(ttnn.add(x, x).shape) == [32, 32]
    grid, dram = device.compute_with_storage_grid_size(), ttnn.get_memory_view(device, ttnn.BufferType.DRAM)
    found = (device.arch().name, device.get_num_devices(), grid.x * grid.y, dram.total_bytes_per_bank * dram.num_banks)
    target.close()
    return found


@needs_ttnn
@pytest.mark.parametrize(
    ("name", "arch", "chips", "cores", "gib"),
    [("p150", "BLACKHOLE", 1, 130, 31.8), ("4xp150", "BLACKHOLE", 4, 130, 31.8), ("n150", "WORMHOLE_B0", 1, 64, 11.9)],
)
def test_every_board_opens_and_takes_an_op(name: str, arch: str, chips: int, cores: int, gib: float) -> None:
    found = run_apart(_board, name)
    assert found[:3] == (arch, chips, cores)
    assert found[3] / 2**30 == pytest.approx(gib, abs=0.1)


def _two_boards() -> str:
    """A board, the same one again, an emulated device beside it, and then another board."""
    first = open_target("mock")
    first.close()
    again, emulated = open_target("mock"), open_target("emulated")
    for target in (again, emulated):
        ttnn = target.ttnn
        x = ttnn.empty((32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=target.device)
        assert list(ttnn.add(x, x).shape) == [32, 32]
    try:
        open_target("mock", board="n150")
    except TtkernError as error:
        return str(error)
    finally:
        again.close()
    return ""


@needs_ttnn
def test_a_process_keeps_the_board_it_opened_first() -> None:
    said = run_apart(_two_boards)
    assert said.startswith(
        "this process has opened the mock board p150 with ttnn, which opens one cluster in a process"
    )


def _shared_board() -> list[str]:
    """Two mirrors and a mock on one device: it is open for each until each has closed it."""
    mirror, other, mock = open_target("mirror"), open_target("mirror"), open_target("mock")
    said = []
    mirror.close()
    mirror.close()
    for target in (other, mock):
        ttnn = target.ttnn
        x = ttnn.empty((32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=target.device)
        said.append(str(list(ttnn.add(x, x).shape)))
    for wrong in (lambda: mirror.ttnn.to_torch(x), lambda: open_target("mock", trace_region_size=1 << 20)):
        try:
            wrong()
        except RuntimeError as error:
            said.append(str(error))
        except TtkernError as error:
            said.append(str(error))
    other.close()
    mock.close()
    again = open_target("mock", trace_region_size=1 << 20)
    said.append(str(again.device.get_num_devices()))
    again.close()
    return said


@needs_ttnn
def test_targets_of_one_board_share_its_device() -> None:
    assert run_apart(_shared_board) == [
        "[32, 32]",
        "[32, 32]",
        "to_torch: the device is closed",
        "the mock board p150 is open with a trace region of 0 bytes, not 1048576; close it first",
        "1",
    ]


CHECK = ("-m", "ttkern.cli", "check", "--model", "small")


@needs_ttnn
@pytest.mark.parametrize(
    ("options", "environment", "said"),
    [
        (("--max-model-len", "100000000"), {}, "--max-model-len is 100000000; the model allows 32768"),
        (("--max-model-len", "0"), {}, "--max-model-len is 0; it must be at least 1 token"),
        (("--kv-cache-tokens", "1"), {}, "--kv-cache-tokens is 1; it must be at least one block"),
        (("--kv-cache-tokens", "128"), {}, "one sequence of --max-model-len 8192 takes 128 blocks"),
        (("--trace-region-size", "-1"), {}, "--trace-region-size is -1; it must be at least 0"),
        (("--chunk-tokens", "100"), {}, "--chunk-tokens is 100; it must be a power of two"),
        (("--block-size", "0"), {}, "--block-size is 0; it must be a power of two"),
        (("--weight-dtype", "int8"), {}, "--weight-dtype is 'int8'; it must be one of bfloat16"),
        (("--target", "emulated"), {}, "--target is 'emulated'; what can be checked on is mock and simulated"),
        (("--model", "/nonexistent"), {}, "'/nonexistent' is neither a checkpoint folder nor a preset"),
        (("--model", ""), {}, "'' is neither a checkpoint folder nor a preset"),
        (("--fresh",), {"LOGURU_LEVEL": "NONE SUCH"}, "ttnn cannot be imported: ValueError"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    options: tuple[str, ...], environment: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = run(tmp_path, *CHECK, *options)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("ttkern: ")
    assert "Traceback" not in done.stderr
    assert environment or done.stderr.count("\n") == 1, "the library's own log is not ours to keep short"


BROKEN = """
import sys
from ops.registry import Case, Op
from ttkern.errors import TtkernError
from ttkern.evidence.legality import check_ops
from ttkern.evidence import legality
from ttkern.targets import open_target


def fails(error):
    def variant(ttnn):
        raise error
    return variant


target = open_target("mock")
for error in (AttributeError("no such thing"), ValueError("bad"), AssertionError(), KeyError("k"),
              ZeroDivisionError("z"),
              RuntimeError("TT_THROW @ /project/tt_metal/jit_build/build.cpp:1: tt::exception\\ninfo:\\nFailed\\n")):
    legality.all_ops = lambda: {"x": Op("x", None, {"planted": fails(error)}, [Case("planted", {})], [])}
    try:
        print(check_ops(target, lambda items, _: items)[0].error)
    except TtkernError as refused:
        print("TtkernError", refused)
"""


@needs_ttnn
def test_a_fault_in_an_op_is_in_the_report_and_one_of_the_machine_is_not(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", BROKEN)
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()[-6:]
    assert said[:3] == ["AttributeError: no such thing", "ValueError: bad", "AssertionError"]
    assert said[3].startswith("KeyError")
    assert said[4] == "ZeroDivisionError: z"
    assert said[5].startswith("TtkernError ttnn could not build a kernel in ")


@needs_ttnn
def test_half_an_installed_ttnn_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "ttnn").mkdir()
    (tmp_path / "ttnn/__init__.py").touch()
    # `-c` looks in the working directory first.
    done = run(tmp_path, "-c", "from ttkern.targets import open_target; open_target('mock')")
    assert "has no library: pip install ttnn==0.81.1" in done.stderr.splitlines()[-1]


@needs_ttnn
def test_without_home_ttnn_still_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    done = run(tmp_path, "-c", "from ttkern.targets import open_target; open_target('mock').close()")
    assert done.returncode == 0, done.stderr[-2000:]
