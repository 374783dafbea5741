"""Traces: what is read, what is refused, what is sent when; and the hit rates on the kept ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.replay.bench_hit_rates import CHUNK, TRACES, Words, good_enough, measure
from ttkern.engine.engine import Engine
from ttkern.engine.stub_runner import StubRunner
from ttkern.errors import TtkernError
from ttkern.model.checkpoint import make_checkpoint
from ttkern.replay.run import VirtualClock, replay
from ttkern.replay.trace import TraceRequest, read_trace, write_trace
from ttkern.replay.workloads import KEPT

GOOD = {"session": "a", "turn": 0, "arrival": 0.0, "prompt": [1, 2, 3], "output_tokens": 4}


@pytest.mark.parametrize("name", KEPT)
def test_the_kept_traces_are_what_their_generators_make(name: str, tmp_path: Path) -> None:
    write_trace(tmp_path / "made.jsonl", KEPT[name]())
    assert (tmp_path / "made.jsonl").read_text() == (TRACES / f"{name}.jsonl").read_text()
    assert read_trace(TRACES / f"{name}.jsonl") == KEPT[name]()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"turn": -1}, "turn is -1; it must be an integer of at least 0"),
        ({"output_tokens": 0}, "output_tokens is 0; it must be an integer of at least 1"),
        ({"output_tokens": True}, "output_tokens is True"),
        ({"arrival": "soon"}, "arrival is 'soon'; it must be seconds, at least 0"),
        ({"arrival": float("nan")}, "arrival is nan"),
        ({"prompt": []}, "prompt must be a list of token ids"),
        ({"prompt": [["s", 0]]}, "prompt must be a list of token ids, or of [stream, start, tokens]"),
        ({"prompt": [-1]}, "prompt must be a list of token ids"),
        ({"session": 3}, "session is 3; it must be a string"),
        ({"speed": 3}, "has a field 'speed' that is not known"),
        ({"turn": 1}, "session 'a' has turn 1 and not the one before"),
    ],
)
def test_a_bad_line_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(GOOD | change) + "\n")
    with pytest.raises(TtkernError) as error:
        read_trace(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "[]\n", "{\n", '{"session": "a"}\n', json.dumps(GOOD) + "\n" + json.dumps(GOOD)]
)
def test_what_is_no_trace_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(TtkernError) as error:
        read_trace(path)
    assert "\n" not in str(error.value)


def engine() -> Engine:
    return Engine(StubRunner(num_host_snapshots=8, num_blocks=1024, max_model_len=8192), Words())


def test_turns_follow_each_other_and_send_their_history() -> None:
    part = ("s", 0, 700)
    rows = replay(
        engine(),
        [
            TraceRequest("a", 1, 5.0, (("t", 0, 300),), 6),
            TraceRequest("a", 0, 1.0, (part,), 10),
            TraceRequest("b", 0, 0.0, (part, ("u", 0, 20)), 5),
        ],
        VirtualClock(),
    )
    later, first, other = rows
    assert (first.prompt_tokens, first.output_tokens, later.prompt_tokens) == (700, 10, 700 + 10 + 300)
    assert later.arrival == first.end + 5.0
    assert other.arrival == 0.0 <= other.first_token <= other.end
    assert (other.cached_tokens, first.cached_tokens, later.cached_tokens) == (0, 512, 512)
    assert all(row.ttft >= 0 for row in rows)


def test_a_request_that_cannot_be_served_is_one_line() -> None:
    with pytest.raises(TtkernError, match=r"session 'a', turn 0: prompt has 9000 tokens"):
        replay(engine(), [TraceRequest("a", 0, 0.0, (("s", 0, 9000),), 1)], VirtualClock())


def test_keeping_by_saving_skips_more_than_lru() -> None:
    rows = measure()
    assert {row[0] for row in rows} == set(KEPT)
    for trace, budget, _, asked, ours, lru in rows:
        assert good_enough(budget, ours, lru), (trace, budget, ours, lru)
        assert 0 < ours < asked
        assert ours % CHUNK == 0


def test_the_command_replays_and_records(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "m", hidden_size=64, intermediate_size=96, vocab_size=800)
    trace = tmp_path / "t.jsonl"
    head = ("h", 0, 300)
    write_trace(trace, [TraceRequest(str(i), 0, 0.0, (head, (f"own-{i}", 0, 40)), 3) for i in range(3)])
    command = [sys.executable, "-m", "ttkern.cli", "replay", str(trace), "--model", str(tmp_path / "m")]
    options = ["--chunk-tokens", "128", "--max-model-len", "1024", "--record", str(tmp_path / "r.json"), "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert json.loads((tmp_path / "r.json").read_text()) == record
    assert [row["cached_tokens"] for row in record["rows"]] == [0, 256, 256]
    assert record["summary"]["cached_tokens"] == record["reuse"]["hits"] == 512
    bad = subprocess.run(
        [*command[:4], str(tmp_path / "no"), *command[5:]], env=env, capture_output=True, text=True, check=False
    )
    assert (bad.returncode, bad.stderr.count("\n")) == (1, 1)
    assert "cannot be read" in bad.stderr
