"""Real ttnn on simulators: GDN states to the device and back bit for bit, traces on ttsim, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ttkern.errors import TtkernError
from ttkern.targets import open_target, run_apart
from ttkern.targets.real.simulated import SIMULATOR, simulator

needs_ttnn = pytest.mark.skipif(
    importlib.util.find_spec("ttnn") is None, reason="ttnn is not installed here: no real library to ask"
)
LAYERS, HEADS, DIM = 2, 4, 32


def wolfpine(arch: str) -> str:
    from framework.sim import simulator_dir

    return str(simulator_dir(arch))


def dma_round_trips(folder: str) -> dict[str, bool]:
    """Snapshot, overwrite and restore states in every dtype, whole and layer by layer; whether every bit came back."""
    os.environ[SIMULATOR] = folder
    target = open_target("simulated")
    ttnn, device = target.ttnn, target.device
    found = {}
    for name in ("float32", "bfloat16", "bfloat8_b"):
        dtype = getattr(ttnn, name)

        def upload(value: torch.Tensor, dtype: Any = dtype) -> Any:
            return ttnn.from_torch(value, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=device)

        generator = torch.Generator().manual_seed(7)
        for what, shape, count in (("whole", (LAYERS, HEADS, DIM, DIM), 1), ("layer", (1, HEADS, DIM, DIM), LAYERS)):
            values = [torch.randn(shape, generator=generator) for _ in range(count)]
            states = [upload(value) for value in values]
            held = [ttnn.to_torch(state).clone() for state in states]
            kept = [ttnn.from_torch(torch.zeros(shape), dtype=dtype, layout=ttnn.TILE_LAYOUT) for _ in range(count)]
            for state, snapshot in zip(states, kept, strict=True):
                ttnn.copy_device_to_host_tensor(state, snapshot)
            other = ttnn.from_torch(torch.full(shape, 3.0), dtype=dtype, layout=ttnn.TILE_LAYOUT)
            for state in states:
                ttnn.copy_host_to_device_tensor(other, state)
            overwritten = all(bool((ttnn.to_torch(state) == 3.0).all()) for state in states)
            still = all(torch.equal(ttnn.to_torch(s), h) for s, h in zip(kept, held, strict=True))
            on_host = all(s.storage_type() == ttnn.StorageType.HOST and s.layout == ttnn.TILE_LAYOUT for s in kept)
            for state, snapshot in zip(states, kept, strict=True):
                ttnn.copy_host_to_device_tensor(snapshot, state)
            back = all(torch.equal(ttnn.to_torch(s), h) for s, h in zip(states, held, strict=True))
            real = name == "bfloat8_b" or all(
                torch.equal(h.float(), v.to(h.dtype).float()) for h, v in zip(held, values, strict=True)
            )
            found[f"{name} {what}"] = overwritten and still and on_host and back and real
    target.close()
    return found


def ways_of_keeping(simulator_path: str, names: tuple[str, ...]) -> dict[str, bool]:
    """Each way of `ops/gdn_snapshot` over two layers' states: whether every bit comes back."""
    from ops.gdn_snapshot.op import WAYS

    os.environ[SIMULATOR] = simulator_path
    target = open_target("simulated", trace_region_size=16 << 20)
    ttnn, device = target.ttnn, target.device
    specs = [((1, HEADS, DIM, DIM), ttnn.float32, ttnn.TILE_LAYOUT), ((1, 3, 96), ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT)]
    generator, found = torch.Generator().manual_seed(3), {}

    def values() -> list[torch.Tensor]:
        return [torch.randn(shape, generator=generator).bfloat16().float() for shape, _, _ in specs * LAYERS]

    def upload(parts: list[torch.Tensor]) -> list[Any]:
        layout = zip(parts, specs * LAYERS, strict=True)
        return [ttnn.from_torch(v, dtype=dtype, layout=lay, device=device) for v, (_, dtype, lay) in layout]

    def holds(states: list[Any], parts: list[torch.Tensor]) -> bool:
        return all(torch.equal(ttnn.to_torch(s).float(), v) for s, v in zip(states, parts, strict=True))

    for name in names:
        way, first, later = WAYS[name], values(), values()
        states = upload(first)
        kept = way.allocate(ttnn, states)
        way.capture(ttnn, states, kept)
        for host, state in zip(upload(later), states, strict=True):
            ttnn.copy_host_to_device_tensor(ttnn.from_device(host), state)
        overwritten = holds(states, later)
        way.restore(ttnn, kept, states)
        found[name] = overwritten and holds(states, first)
        if name == "device_copy":  # the same inside traces
            device.set_program_cache_misses_allowed(False)
            save = ttnn.begin_trace_capture(device, cq_id=0)
            way.capture(ttnn, states, kept)
            ttnn.end_trace_capture(device, save, cq_id=0)
            load = ttnn.begin_trace_capture(device, cq_id=0)
            way.restore(ttnn, kept, states)
            ttnn.end_trace_capture(device, load, cq_id=0)
            for turn in range(2):
                parts = values()
                hosts = [ttnn.from_device(t) for t in upload(parts)]
                for host, state in zip(hosts, states, strict=True):
                    ttnn.copy_host_to_device_tensor(host, state)
                ttnn.execute_trace(device, save, cq_id=0, blocking=False)
                for host, state in zip([ttnn.from_device(t) for t in upload(later)], states, strict=True):
                    ttnn.copy_host_to_device_tensor(host, state)
                ttnn.execute_trace(device, load, cq_id=0, blocking=False)
                found[f"{name} traced {turn}"] = holds(states, parts)
    target.close()
    return found


@needs_ttnn
@pytest.mark.slow
def test_the_ways_of_keeping_a_state_restore_it_bit_for_bit() -> None:
    names = ("host_roundtrip", "dma")  # device_copy is a kernel: on ttsim
    assert run_apart(ways_of_keeping, wolfpine("blackhole"), names) == dict.fromkeys(names, True)


@pytest.mark.ttsim
@pytest.mark.timeout(1200)
def test_all_ways_of_keeping_a_state_restore_it_on_ttsim_and_in_traces(ttsim: str) -> None:
    found = run_apart(ways_of_keeping, ttsim, ("host_roundtrip", "dma", "device_copy"))
    assert found == dict.fromkeys(found, True)
    assert len(found) == 5


@needs_ttnn
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["blackhole", "wormhole"])
def test_a_state_is_snapshotted_and_restored_bit_for_bit(arch: str) -> None:
    found = run_apart(dma_round_trips, wolfpine(arch))
    assert found == dict.fromkeys(found, True)
    assert len(found) == 6


@pytest.mark.ttsim
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("model", "options", "layers"),
    [("small", ["--chunk-tokens", "256", "--max-model-len", "1024"], 4), ("qwen3.6-27b", [], 2)],
)
def test_every_trace_is_captured_and_replayed(model: str, options: list[str], layers: int, ttsim: str) -> None:
    command = [sys.executable, "-m", "ttkern.cli", "check", "--target", "simulated", "--model", model, "--json"]
    env = {**os.environ, SIMULATOR: ttsim, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=2900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert (report["ok"], report["refused"], report["layers"], report["allocated"]) == (True, None, layers, 0)
    rows = {row["path"]: row for row in report["rows"]}
    chunk = 256 if model == "small" else 2048
    assert {f"prefill_{chunk}", "prefill_128", "masked_bucket_128", "masked_bucket_32", "decode"} <= set(rows)
    assert all(row["replay_ms"] <= row["eager_ms"] / 20 for row in rows.values()), rows
    assert all(0 < row["trace_bytes"] <= row["full_model_bytes"] for row in rows.values())
    assert report["region"] >= sum(row["full_model_bytes"] for row in rows.values())


def traced_data(library: str) -> dict[str, bool]:
    """What moves inside a trace: a state's snapshot, and K and V through a refreshed page table."""
    os.environ[SIMULATOR] = library
    target = open_target("simulated", trace_region_size=16 << 20)
    ttnn, device = target.ttnn, target.device

    def upload(value: torch.Tensor, dtype: Any, layout: Any = ttnn.TILE_LAYOUT) -> Any:
        return ttnn.from_torch(value, dtype=dtype, layout=layout, device=device)

    def refresh(value: torch.Tensor, tensor: Any) -> Any:
        host = ttnn.from_torch(value, dtype=tensor.dtype, layout=tensor.layout)
        ttnn.copy_host_to_device_tensor(host, tensor)
        return host

    state, slot = (upload(torch.zeros(1, HEADS, DIM, DIM), ttnn.float32) for _ in range(2))
    cache = upload(torch.zeros(8, 2, 32, 32), ttnn.bfloat16)
    fresh = upload(torch.zeros(1, 2, 64, 32), ttnn.bfloat16)
    table = upload(torch.zeros(1, 2, dtype=torch.int32), ttnn.int32, ttnn.ROW_MAJOR_LAYOUT)

    def body() -> None:
        ttnn.copy(state, slot)
        ttnn.experimental.paged_fill_cache(cache, fresh, table, batch_idx=0)

    body()
    ttnn.synchronize_device(device)
    device.set_program_cache_misses_allowed(False)
    trace = ttnn.begin_trace_capture(device, cq_id=0)
    body()
    ttnn.end_trace_capture(device, trace, cq_id=0)
    refresh(torch.zeros(8, 2, 32, 32), cache)
    found = {}
    want = torch.zeros(8, 2, 32, 32)
    for turn, blocks in enumerate([(5, 2), (0, 7), (2, 3)]):
        generator = torch.Generator().manual_seed(turn)
        states = torch.randn(1, HEADS, DIM, DIM, generator=generator)
        rows = torch.randn(1, 2, 64, 32, generator=generator).bfloat16().float()
        hosts = [refresh(states, state), refresh(rows, fresh), refresh(torch.tensor([blocks]).int(), table)]
        ttnn.execute_trace(device, trace, cq_id=0, blocking=False)
        hosts.append(refresh(torch.full_like(states, 9.0), state))  # after the replay: the snapshot must not see it
        for part, block in enumerate(blocks):
            want[block] = rows[0, :, 32 * part : 32 * part + 32]
        found[f"snapshot {turn}"] = torch.equal(ttnn.to_torch(slot), states)
        found[f"cache {turn}"] = torch.equal(ttnn.to_torch(cache).float(), want)
    target.close()
    return found


@pytest.mark.ttsim
@pytest.mark.timeout(1200)
def test_a_traced_snapshot_holds_the_bytes_of_the_moment_of_its_replay(ttsim: str) -> None:
    found = run_apart(traced_data, ttsim)
    assert found == dict.fromkeys(found, True)
    assert len(found) == 6


def refused(environment: dict[str, str]) -> str:
    with pytest.raises(TtkernError) as error:
        simulator(environment)
    return str(error.value)


def test_what_is_no_simulator_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "needs TT_METAL_SIMULATOR: the path of ttsim's libttsim.so" in refused({})
    assert "does not exist" in refused({SIMULATOR: str(tmp_path / "none.so")})
    assert "holds a run.sh" in refused({SIMULATOR: str(tmp_path)})
    library = tmp_path / "libttsim.so"
    library.touch()
    assert "soc_descriptor.yaml must lie beside it" in refused({SIMULATOR: str(library)})
    (tmp_path / "soc_descriptor.yaml").write_text("arch_name: BLACKHOLE\n")
    assert simulator({SIMULATOR: str(library)}) == library


def test_a_simulator_without_ttnn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TtkernError, match=r"target 'simulated' needs ttnn: pip install ttnn==0\.81\.1"):
        open_target("simulated")
