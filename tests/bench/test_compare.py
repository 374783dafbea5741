"""`ttkern compare`: 0, 1 or 2, and why; on records, on pytest-benchmark's JSON, and on what is neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ttkern.cli import app
from ttkern.evidence.records import new_record, write_record

Write = Callable[..., str]


def times(factor: float = 1.0, count: int = 100) -> list[float]:
    return (1e-3 * factor * np.exp(0.02 * np.random.default_rng(int(1000 * factor)).standard_normal(count))).tolist()


@pytest.fixture
def record(tmp_path: Path) -> Write:
    def write(name: str, samples: dict[str, list[float]], machine: dict[str, Any] | None = None, **config: Any) -> str:
        options = {
            "op": "linear",
            "arms": list(samples),
            "case": "small",
            "target": "emulated",
            "method": "interleaved",
        }
        made = new_record("bench", {**options, **config}, ["ops/linear"], samples_s=samples)
        made["machine"].update(machine or {})
        write_record(tmp_path / name, made)
        return str(tmp_path / name)

    return write


@pytest.fixture
def pytest_json(tmp_path: Path) -> Write:
    def write(name: str, samples: dict[str, list[float] | None], cpu: str = "x", **extra: Any) -> str:
        rows = [
            {
                "name": n,
                "fullname": f"ops/{n}",
                "params": None,
                "extra_info": extra,
                "stats": {"data": data, "median": 1},
            }
            for n, data in samples.items()
        ]
        machine = {"cpu": {"brand_raw": cpu}, "machine": "x86_64", "python_version": "3.12", "system": "Linux"}
        (tmp_path / name).write_text(json.dumps({"machine_info": machine, "benchmarks": rows}))
        return str(tmp_path / name)

    return write


def run(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["compare", *options])
    return done.exit_code, done.output


def test_the_same_and_the_slower(record: Write) -> None:
    a = record("a.json", {"ttnn": times()})
    assert run(a, record("b.json", {"ttnn": times(1.01)}))[0] == 0
    code, said = run(a, record("c.json", {"ttnn": times(1.2)}))
    assert (code, "slower by more than 0.05" in said) == (1, True)
    assert run(a, record("d.json", {"ttnn": times(0.8)}))[0] == 0


@pytest.mark.parametrize(
    ("thresholds", "code"), [(["0.3"], 0), (["linear=0.3"], 0), (["0.3", "linear=0.1"], 1), (["argmax=0.3"], 1)]
)
def test_thresholds_by_name(record: Write, thresholds: list[str], code: int) -> None:
    files = record("a.json", {"ttnn": times()}), record("b.json", {"ttnn": times(1.2)})
    assert run(*files, *(word for text in thresholds for word in ("--threshold", text)))[0] == code


def test_missing_and_renamed_rows_are_failures(record: Write) -> None:
    a = record("a.json", {"ttnn": times(), "other": times()})
    code, said = run(a, record("b.json", {"ttnn": times(), "renamed": times()}))
    assert code == 1
    assert said.count("missing in") == 2


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"machine": {"cpu": "another"}}, "the machine differs in cpu"),
        ({"case": "tiny"}, "was measured otherwise"),
        ({"method": "interleaved processes"}, "the method differs"),
    ],
)
def test_runs_of_another_kind_are_not_compared(record: Write, other: dict[str, Any], said: str) -> None:
    a = record("a.json", {"ttnn": times()})
    code, shown = run(a, record("b.json", {"ttnn": times(1.5)}, **other))
    assert code == 2
    assert said in shown


def test_pytest_benchmarks_json(pytest_json: Write, record: Write) -> None:
    a = pytest_json("a.json", {"x": times()}, target="mock")
    assert run(a, pytest_json("b.json", {"x": times(1.01)}, target="mock"))[0] == 0
    assert run(a, pytest_json("c.json", {"x": times(1.3)}, target="mock"))[0] == 1
    assert run(a, pytest_json("d.json", {"x": times()}, target="emulated"))[0] == 2
    assert run(a, pytest_json("e.json", {"x": times()}, cpu="y", target="mock"))[0] == 2
    assert run(a, record("f.json", {"ttnn": times()}))[0] == 2
    assert run(a, pytest_json("g.json", {}, target="mock"))[0] == 1
    assert run(*[pytest_json("h.json", {})] * 2)[0] == 2


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "3", "\x00", "[" * 100_000),
        *('{"benchmarks": 3, "machine_info": {}}', '{"benchmarks": [{}], "machine_info": {}}'),
        *('{"format": 2, "kind": "bench"}', '{"format": 1}'),
    ],
)
def test_what_is_no_run_is_one_line(record: Write, tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    done = CliRunner().invoke(app, ["compare", record("a.json", {"ttnn": times()}), str(tmp_path / "bad.json")])
    assert done.exit_code == 1
    assert str(tmp_path / "bad.json") in str(done.exception)
    assert "\n" not in str(done.exception)


def test_without_raw_samples_it_says_how_to_save_them(pytest_json: Write) -> None:
    bad = pytest_json("a.json", {"x": None})
    done = CliRunner().invoke(app, ["compare", bad, bad])
    assert "--benchmark-save-data" in str(done.exception)


@pytest.mark.parametrize("text", ["5%", "-0.1", "nan", "inf", "linear=", "x"])
def test_a_threshold_that_is_no_decimal(record: Write, text: str) -> None:
    a = record("a.json", {"ttnn": times()})
    done = CliRunner().invoke(app, ["compare", a, a, "--threshold", text])
    assert "it must be a decimal such as 0.05" in str(done.exception)


def test_json_says_the_same(record: Write) -> None:
    files = record("a.json", {"ttnn": times()}), record("b.json", {"ttnn": times(1.2)})
    code, said = run(*files, "--json")
    found = json.loads(said)
    assert (code, found["exit_code"]) == (1, 1)
    assert found["rows"][0]["found"]["outcome"] == "slower"


def test_records_are_listed_shown_and_verified(record: Write, tmp_path: Path) -> None:
    path = record("a.json", {"ttnn": times()})
    (tmp_path / "not-a-record.json").write_text("{}")
    assert CliRunner().invoke(app, ["records", "verify", str(tmp_path)]).exit_code == 0
    shown = CliRunner().invoke(app, ["records", "show", path])
    assert json.loads(shown.output)["kind"] == "bench"
    assert "samples_s" not in shown.output
    changed = json.loads(Path(path).read_text())
    changed["sources"]["ops/linear"] = "0" * 16
    Path(path).write_text(json.dumps(changed))
    done = CliRunner().invoke(app, ["records", "verify", str(tmp_path), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.output)[0]["stale"] == ["ops/linear"]
    assert CliRunner().invoke(app, ["records", "list", str(tmp_path)]).exit_code == 0
    assert "does not exist" in str(CliRunner().invoke(app, ["records", "list", str(tmp_path / "gone")]).exception)
