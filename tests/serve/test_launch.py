"""A checkpoint that cannot be served: one line on stderr that names the file, exit code 1."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ttkern.model.checkpoint import make_checkpoint


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])


def rewrite(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = folder / "config.json"
        text = config.read_text()
        assert old in text
        config.write_text(text.replace(old, new))

    return change


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated weights": (truncate, "model.safetensors: tensor "),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: not found"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: not found"),
    "another shape": (rewrite('"intermediate_size": 96', '"intermediate_size": 64'), "shape [96, 64]"),
    "another family": (rewrite("qwen3_5_text", "qwen3_next"), "model_type is 'qwen3_next'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_one_line_and_exit_code_1(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    make_checkpoint(folder, hidden_size=64, intermediate_size=96, num_hidden_layers=4)
    break_it, words = BROKEN[case]
    break_it(folder)
    done = subprocess.run(
        [sys.executable, "-m", "ttkern.cli", "serve", "--model", str(folder), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
