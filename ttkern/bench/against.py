"""This tree against another revision, in interleaved pairs: a worker process of each, several times over.

Two processes of the same code differ by a few percent for as long as they live (where their memory lies), so the pairs
come from several pairs of processes, and the interval knows which pair of processes each came from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ops.registry import Case, Op
from ttkern.bench import timing
from ttkern.bench.pairs import MIN_PAIRS
from ttkern.errors import TtkernError
from ttkern.evidence.records import ROOT

Track = Callable[[Iterable[Any], str], Iterable[Any]]
PROCESSES = 6


class Worker:
    """A process that times one variant in one tree. Raises TtkernError where it cannot."""

    def __init__(self, tree: Path, label: str, *words: str) -> None:
        self._label = label
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by `kill`
        self._process = subprocess.Popen(
            [sys.executable, timing.__file__, *words],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.ready = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(timing.MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(timing.MARK))
                if "error" in found:
                    raise TtkernError(f"{self._label}: {found['error']}")
                return found
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["it said nothing"]
        raise TtkernError(f"{self._label}: the worker ended: {said[-1]}")

    def sample(self, calls: int) -> float:
        """Seconds of a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def end(self) -> bool | None:
        """Whether its last output was right."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._read()["right"]

    def kill(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


@contextmanager
def worktree(revision: str) -> Iterator[tuple[Path, str]]:
    """A revision's tree in a folder of its own, and its commit. Raises TtkernError where git has none."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory(prefix="ttkern-against-") as folder:
        tree = Path(folder, "tree")
        try:
            _run([*git, "worktree", "add", "--quiet", "--detach", str(tree), revision])
            yield tree, _run(["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"]).strip()
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], capture_output=True, check=False)


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise TtkernError("--against needs git") from error
    except subprocess.CalledProcessError as error:
        raise TtkernError(f"--against: {error.stderr.strip().splitlines()[-1]}") from error


def samples_against(
    tree: Path, revision: str, target: str, op: Op, variant: str, case: Case, pairs: int, track: Track
) -> dict[str, Any]:
    """Seconds per call of both trees, pair by pair, the pair of processes of each, and what each worker said first."""
    words = (target, op.name, variant, case.name)
    trees = {revision: tree, "this tree": ROOT}
    samples: dict[str, list[float]] = {label: [] for label in trees}
    groups: list[int] = []
    ready: dict[str, dict[str, Any]] = {}
    each = max(-(-pairs // PROCESSES), -(-MIN_PAIRS // PROCESSES))
    for group in track(range(PROCESSES), f"{op.name}/{variant}, {case.name}: this tree against {revision}"):
        with ExitStack() as stack:
            workers = {}
            for label, root in trees.items():
                workers[label] = Worker(root, label, *words)
                stack.callback(workers[label].kill)
                ready.setdefault(label, workers[label].ready)
            calls = max(worker.ready["calls"] for worker in workers.values())
            for n in range(each):
                order = list(workers) if (n + group) % 2 else list(workers)[::-1]
                for label in order:
                    samples[label].append(workers[label].sample(calls))
                groups.append(group)
            for label, worker in workers.items():
                if worker.end() is False:
                    raise TtkernError(f"{label}: the last timed call's output is wrong")
    return {"samples": samples, "groups": groups, "ready": ready, "calls": calls}
