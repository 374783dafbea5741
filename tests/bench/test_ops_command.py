"""`ttkern ops`: the registry as it is, and a new op that works as it is laid out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops import all_ops
from ttkern.bench.ops_command import listing, new_op, what_targets_can
from ttkern.errors import TtkernError
from ttkern.evidence.records import ROOT
from ttkern.targets import TARGETS

NAME = "laid_out_by_a_test"


def test_the_listing_is_the_registry() -> None:
    listed = listing()
    assert {row["op"] for row in listed["ops"]} == set(all_ops())
    assert all((ROOT / row["folder"] / "op.py").is_file() for row in listed["ops"])
    assert list(listed["targets"]) == list(TARGETS)
    assert what_targets_can()["emulated"] == "numbers, traces"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, so that a new folder is never in the real one."""
    for package in ("ops", "ttkern"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "checkpoint"))
    return tmp_path


def test_a_new_op_is_registered_right_and_timed(tree: Path) -> None:
    def python(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=tree, capture_output=True, text=True, timeout=300, check=False
        )

    laid = python("-m", "ttkern.cli", "ops", "new", NAME)
    assert laid.returncode == 0, laid.stderr
    assert sorted(path.name for path in (tree / "ops" / NAME).glob("*.py")) == [
        "__init__.py",
        "bench.py",
        "cases.py",
        "op.py",
        "reference.py",
    ]
    timed = python("-m", "ttkern.cli", "bench", NAME, "--case", "tiny", "--pairs", "20", "--json")
    assert timed.returncode == 0, timed.stderr
    assert json.loads(timed.stdout)["gates"]["ttnn"]["verdict"] == "PASS"
    linted = python("-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), f"ops/{NAME}")
    assert linted.returncode == 0, linted.stdout
    again = python("-m", "ttkern.cli", "ops", "new", NAME)
    assert (again.returncode, again.stderr) == (1, f"ttkern: {NAME}: is there already; an op needs a name of its own\n")


@pytest.mark.parametrize("name", ["", "Linear", "1st", "two words", "a-b", "../up", "class", "linear", "registry"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    before = sorted(path.name for path in (ROOT / "ops").iterdir())
    with pytest.raises(TtkernError):
        new_op(name)
    assert sorted(path.name for path in (ROOT / "ops").iterdir()) == before
