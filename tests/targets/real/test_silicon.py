"""Opening a card: all that can be known without one is what is refused, and that a hung device's op is named."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ttkern.errors import TtkernError
from ttkern.targets import default_target, open_target
from ttkern.targets.proxy import Proxy
from ttkern.targets.real import library, silicon
from ttkern.targets.real.overlay import overlay
from ttkern.targets.real.watchdog import Watchdog


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with ttnn, a card and SFPI, as far as files tell; its runtime root."""
    package = tmp_path / "ttnn"
    compiler = package / "runtime/sfpi/compiler/bin/riscv-tt-elf-g++"
    compiler.parent.mkdir(parents=True)
    compiler.write_text("#!/bin/sh\n")
    (package / "runtime/hw").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/0").touch()
    monkeypatch.setattr(silicon, "find_ttnn", lambda target: package)
    monkeypatch.setattr(silicon, "CARDS", tmp_path / "dev")
    for name in ("TT_METAL_RUNTIME_ROOT", "TT_METAL_CACHE", *silicon.ELSEWHERE):
        monkeypatch.delenv(name, raising=False)
    return package


def refusal() -> str:
    with pytest.raises(TtkernError) as error:
        open_target("silicon")
    return str(error.value)


def test_without_ttnn_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "target 'silicon' needs ttnn: pip install ttnn==0.81.1" in refusal()


@pytest.mark.parametrize("kind", ["null", "dispatch"])
def test_a_stand_in_compiler_is_refused(
    machine: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    laid = overlay(machine, kind)
    monkeypatch.setenv("TT_METAL_RUNTIME_ROOT", laid.environment["TT_METAL_RUNTIME_ROOT"])
    assert "is a stand-in that writes empty kernels, and a card must never run them" in refusal()


@pytest.mark.parametrize("name", silicon.ELSEWHERE)
def test_an_environment_that_points_elsewhere_is_refused(
    machine: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "/somewhere")
    assert f"{name} is set, so ttnn would not open a card" in refusal()


def test_without_a_card_or_a_compiler_it_says_so(machine: Path, tmp_path: Path) -> None:
    (machine / "runtime/sfpi/compiler/bin/riscv-tt-elf-g++").unlink()
    assert "needs the SFPI compiler" in refusal()
    (tmp_path / "dev/0").unlink()
    (tmp_path / "dev").rmdir()
    assert "needs a card" in refusal()
    assert default_target() == "emulated"


def test_with_all_of_it_the_card_is_opened_as_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def open_device(**options: Any) -> str:
        asked.update(options)
        return "device"

    fake = SimpleNamespace(open_device=open_device)
    monkeypatch.setattr(library, "_start", lambda environment: fake)
    monkeypatch.setattr(library, "_opened", None)
    target = open_target("silicon", trace_region_size=1 << 20)
    assert (target.ttnn, target.device, target.has_trace, target.has_timing) == (fake, "device", True, True)
    assert asked == {"device_id": 0, "trace_region_size": 1 << 20}
    assert default_target() == "silicon"
    again = open_target("silicon", trace_region_size=1 << 20, watchdog_seconds=9)
    assert isinstance(again.ttnn, Proxy)
    assert again.device == target.device


@pytest.mark.parametrize("in_trace", [False, True])
def test_the_watchdog_names_the_op_that_hangs(in_trace: bool) -> None:
    """A device that stops answering in its third op, or in the trace that holds it."""
    target = open_target("emulated")
    hang, said, told = threading.Event(), [], threading.Event()

    def wait() -> None:
        if hang.is_set():
            assert told.wait(30)

    def expire(report: str) -> None:
        said.append(report)
        told.set()

    ttnn = Proxy(target.ttnn, Watchdog(wait, 0.2, expire).around)
    x = ttnn.from_torch(
        torch.ones(32, 32), dtype=target.ttnn.bfloat16, layout=target.ttnn.TILE_LAYOUT, device=target.device
    )
    y = ttnn.add(x, x)
    if in_trace:
        trace = ttnn.begin_trace_capture(target.device, cq_id=0)
        ttnn.exp(y)
        ttnn.end_trace_capture(target.device, trace, cq_id=0)
        hang.set()
        ttnn.execute_trace(target.device, trace, cq_id=0, blocking=False)
    else:
        hang.set()
        ttnn.exp(y)
    assert told.is_set()
    wanted, before = (f"ttnn.execute_trace of trace {trace}", "end_trace_capture") if in_trace else ("ttnn.exp", "add")
    assert said[0].startswith(f"the device hangs in {wanted}: no answer for 0.2 s; the last op it finished is")
    assert f"ttnn.{before}\n" in said[0]
    assert "tt-smi -r" in said[0]


def test_a_hung_process_ends_with_the_report() -> None:
    program = """
import time
from ttkern.targets.real.watchdog import Watchdog
Watchdog(lambda: time.sleep(60), 0.2).around("linear", lambda: None, (), {})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 70
    assert "ttkern: the device hangs in ttnn.linear: no answer for 0.2 s" in done.stderr


def test_a_device_that_answers_is_left_alone() -> None:
    said: list[str] = []
    dog = Watchdog(lambda: None, 0.05, said.append)
    for _ in range(3):
        assert dog.around("add", lambda: 7, (), {}) == 7
        threading.Event().wait(0.1)
    assert said == []
