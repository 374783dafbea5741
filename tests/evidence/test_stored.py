"""A kept report is found by what it was made from, and only whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ttkern.evidence import stored
from ttkern.evidence.legality import CallRow, Memory, OpRow, PathRow, Report
from ttkern.evidence.stored import fingerprint, load, save

REPORT = Report(
    model="m",
    measured="2026-01-01T00:00:00+00:00",
    layers=2,
    ops=[OpRow("linear", "plain", "tiny", None, ["[1] BFLOAT16 TILE"], 1.5), OpRow("x", "y", "z", "no", [], None)],
    paths=[PathRow("decode", 3, 1.25, [CallRow("linear", 3, 2.0, 6.0)])],
    memory=Memory(10, 1, 2, 3, 6, 64, 128),
    refused="because",
    does_not_fit=None,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ttkern/reports"


def test_a_report_comes_back_as_it_was(cache: Path) -> None:
    assert load(Report, "k") is None
    save(REPORT, "k")
    assert load(Report, "k") == REPORT
    assert [path.name for path in cache.iterdir()] == ["k.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "{}", "[]", "null", '{"ops": 3}', '{"model": 1', '{"model": "m", "ops": []}']
)
def test_a_broken_one_is_none(cache: Path, content: str) -> None:
    cache.mkdir(parents=True)
    (cache / "k.json").write_text(content)
    assert load(Report, "k") is None


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    save(REPORT, "k")
    assert load(Report, "k") is None


def test_what_cannot_be_replaced_leaves_nothing_half_written(cache: Path) -> None:
    (cache / "k.json").mkdir(parents=True)
    save(REPORT, "k")
    assert [path.name for path in cache.iterdir()] == ["k.json"]


def test_the_key_follows_sources_library_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, library = tmp_path / "ops/linear/op.py", tmp_path / "ttnn/_ttnn.so"
    for path in (source, library):
        path.parent.mkdir(parents=True)
        path.write_text("one")
    monkeypatch.setattr(stored, "ops", SimpleNamespace(__file__=str(tmp_path / "ops/__init__.py")))
    keys = [fingerprint(library.parent, "a", 1), fingerprint(library.parent, "a", 2)]
    assert fingerprint(library.parent, "a", 1) == keys[0]
    source.write_text("two")
    keys.append(fingerprint(library.parent, "a", 1))
    library.write_text("other")
    keys.append(fingerprint(library.parent, "a", 1))
    assert len(set(keys)) == 4
