"""`ttkern bench`: judged, timed, judged again; against another revision; and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ops import all_ops
from ops.registry import Op, make_inputs
from ttkern.bench import timing
from ttkern.bench.against import worktree
from ttkern.bench.run import bench_variants, find
from ttkern.bench.timing import Timer, cost_of, tensor_bytes
from ttkern.errors import TtkernError
from ttkern.evidence.records import ROOT, read_record, stale
from ttkern.targets import open_target


def command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ttkern.cli", "bench", *options],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def quiet(items: Any, _: str) -> Any:
    return items


def test_a_record_holds_what_it_rests_on(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "r.json"
    done = command("argmax", "--case", "tiny", "--pairs", "30", "--record", str(path), "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    record = read_record(path)
    assert record == json.loads(done.stdout)
    assert record["config"]["arms"] == ["device", "host"]
    assert {len(times) for times in record["samples_s"].values()} == {30}
    assert all(gate["verdict"] == "PASS" for gate in record["gates"].values())
    assert record["comparisons"]["host"]["pairs"] == 30
    assert stale(record) == []
    assert stale({"sources": {**record["sources"], "ops/argmax": "another"}}) == ["ops/argmax"]
    assert stale({"sources": {"ops/gone": "x"}}) == ["ops/gone"]


def wrong_op(fault: str) -> Op:
    """RMSNorm with a variant that is wrong from the first call, or from the third on."""
    op = all_ops()["rms_norm"]
    right, calls = op.variants["ttnn"], []

    def variant(ttnn: Any, **tensors: Any) -> tuple[Any, ...]:
        calls.append(1)
        (y,) = right(ttnn, **tensors)
        late = fault == "later" and len(calls) > 12
        return (ttnn.multiply(y, y),) if fault == "always" or late else (y,)

    return replace(op, variants={"ttnn": right, "wrong": variant})


@pytest.mark.parametrize(("fault", "said"), [("always", "is not timed: FAIL"), ("later", "last timed call's output")])
def test_a_wrong_variant_gives_no_time(fault: str, said: str) -> None:
    op = wrong_op(fault)
    with pytest.raises(TtkernError, match=said):
        bench_variants(open_target("emulated"), op, ["ttnn", "wrong"], op.case("tiny"), 20, quiet)


def test_every_timed_call_gets_inputs_of_its_own() -> None:
    """The snapshot is written in place: reused, the second call would find it done."""
    op, case = find("gdn_snapshot", "tiny")
    timer = Timer(open_target("emulated"), op, "device_copy", case)
    first, second = timer.fresh(), timer.fresh()
    assert all(first[name] is not second[name] for name in case.tensors)
    timer.sample(3)
    assert timer.still_right() is True


def test_bytes_and_flops_are_the_algorithms() -> None:
    op, case = find("linear", "tiny")
    x, weight = (case.tensors[name].shape for name in list(case.tensors)[:2])
    cost = cost_of(op, case)
    (y,) = op.reference(**make_inputs(case, 0), **case.params)
    assert cost.flops == 2 * y.numel() * x[-1]
    moved = sum(tensor_bytes(spec.shape, spec.dtype) for spec in case.tensors.values())
    assert cost.bytes == moved + tensor_bytes(tuple(y.shape), op.outputs[0].dtype)
    assert len(weight) >= 2
    assert tensor_bytes((32, 32), "bfloat8_b") == 1088


@pytest.mark.slow
def test_this_tree_against_its_own_commit() -> None:
    done = command("argmax", "--variants", "device", "--case", "tiny", "--pairs", "24", "--against", "HEAD", "--json")
    if "not a git repository" in done.stderr:
        pytest.skip("no git tree")
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads(done.stdout)
    commit, ours = record["config"]["arms"]
    assert ours == "this tree"
    assert len(record["samples_s"][ours]) == len(record["samples_s"][commit]) == len(record["groups"]) == 24
    assert len(set(record["groups"])) == 6
    trees = subprocess.run(["git", "-C", str(ROOT), "worktree", "list"], capture_output=True, text=True, check=True)
    assert "ttkern-against" not in trees.stdout


def test_a_revision_that_is_none_is_refused() -> None:
    with pytest.raises(TtkernError, match=r"--against: .*no-such-thing"), worktree("no-such-thing"):
        pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("nothing",), "no op is called 'nothing'; there are "),
        (("linear", "--case", "huge"), "linear has no case 'huge'; it has tiny"),
        (("linear", "--variants", "fast"), "linear has no variant 'fast'; it has ttnn"),
        (("linear", "--pairs", "3"), "--pairs is 3; fewer than 20 say nothing"),
        (("linear", "--margin", "2"), "--margin is 2; it must be at least 0 and less than 1"),
        (("argmax", "--against", "HEAD"), "--against compares one variant of argmax"),
        (("linear", "--target", "card"), "target 'card' is not one of"),
    ],
)
def test_what_cannot_be_timed_is_one_line(options: tuple[str, ...], said: str) -> None:
    done = command(*options)
    assert done.returncode == 1
    assert done.stderr.startswith(f"ttkern: {said}")
    assert done.stderr.count("\n") == 1


def test_a_worker_answers_line_by_line() -> None:
    done = subprocess.run(
        [sys.executable, timing.__file__, "emulated", "argmax", "device", "tiny"],
        input="2\n1\n",
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    said = [json.loads(line.removeprefix(timing.MARK)) for line in done.stdout.splitlines() if timing.MARK in line]
    assert [sorted(one) for one in said] == [["calls", "first_call", "gate"], ["seconds"], ["seconds"], ["right"]]
    assert said[-1] == {"right": True}
    assert torch.get_num_threads() >= 1
