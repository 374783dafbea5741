"""`ttkern doctor` on this machine, and on one that lacks what it looks for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ttkern.targets import TARGETS


def run_doctor(
    *options: str, environment: dict[str, str] | None = None, stdout: Any = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(environment or {})}
    env.pop("TT_METAL_SIMULATOR", None)
    command = [sys.executable, "-m", "ttkern.cli", "doctor", *options]
    return subprocess.run(command, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300, check=False)


def doctor(environment: dict[str, str] | None = None) -> dict[str, dict[str, object]]:
    done = run_doctor("--json", environment=environment)
    assert done.returncode == 0, done.stderr
    return {row["what"]: row for row in json.loads(done.stdout)}


def test_every_target_is_opened_or_the_reason_is_given() -> None:
    found = doctor()
    assert [f"target {name}" for name in TARGETS] == [what for what in found if what.startswith("target ")]
    assert found["target emulated"] == {"what": "target emulated", "ok": True, "found": "data, arithmetic, traces"}
    has_ttnn = importlib.util.find_spec("ttnn") is not None
    assert found["ttnn"]["ok"] is has_ttnn
    assert found["target mock"]["ok"] is has_ttnn
    assert found["target mirror"]["ok"] is has_ttnn
    if not has_ttnn:
        assert "pip install ttnn==0.81.1" in str(found["target mock"]["found"])
    assert found["target simulated"]["ok"] is False
    assert all(str(row["found"]).count("\n") == 0 for row in found.values())


def test_a_cache_folder_that_ttnn_cannot_use_is_the_reason(tmp_path: Path) -> None:
    found = doctor({"XDG_CACHE_HOME": str(tmp_path / "my cache")})
    assert found["target emulated"]["ok"] is True
    if importlib.util.find_spec("ttnn") is not None:
        assert found["target mock"]["ok"] is False
        assert "cannot hold a path with ' ';" in str(found["target mock"]["found"])


def test_a_cache_folder_under_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = doctor({"XDG_CACHE_HOME": str(tmp_path / "file/cache")})
    assert found["cache folder"]["ok"] is False
    assert "is no folder that can be written to" in str(found["cache folder"]["found"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_report_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = run_doctor("--json", stdout=full)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ttkern: the report cannot be written to stdout: No space left on device"


def test_a_reader_that_left_is_no_verdict() -> None:
    read, written = os.pipe()
    os.close(read)
    done = run_doctor(stdout=written)
    os.close(written)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
