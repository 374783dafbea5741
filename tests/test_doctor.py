"""`ttkern doctor` on this machine, and on one that lacks what it looks for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from ttkern.targets import TARGETS


def doctor(environment: dict[str, str] | None = None) -> dict[str, dict[str, object]]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(environment or {})}
    env.pop("TT_METAL_SIMULATOR", None)
    command = [sys.executable, "-m", "ttkern.cli", "doctor", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
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
        assert "cannot use a path with a space" in str(found["target mock"]["found"])
