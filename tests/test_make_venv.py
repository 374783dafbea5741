"""`.ci/make_venv.sh` with an interpreter that only notes what it is asked to do."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Makes a .venv whose python is this script again; pip fails while a file named "offline" exists.
INTERPRETER = f"""#!/bin/sh
case "$1 $2" in
"- ") exec "{sys.executable}" - ;;
"-m venv") echo venv >>calls; mkdir -p .venv/bin; ln -s "$0" .venv/bin/python ;;
"-m pip") echo pip >>calls; [ ! -e offline ] ;;
*) exec "{sys.executable}" "$@" ;;
esac
"""


class Tree:
    """A copy of what the script needs, and what it did there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci/make_venv.sh", folder / ".ci")
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.python = folder / "interpreter"
        self.python.write_text(INTERPRETER)
        self.python.chmod(0o755)

    def run(self, python: object = None) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """The finished run, and the interpreter's part in it: "venv" and "pip" calls."""
        (self.folder / "calls").write_text("")
        result = subprocess.run(
            ["bash", ".ci/make_venv.sh"],
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", "PYTHON": str(python or self.python)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return result, (self.folder / "calls").read_text().split()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


def test_a_complete_venv_is_left_alone_without_a_word(tree: Tree) -> None:
    result, calls = tree.run()
    assert (result.returncode, calls) == (0, ["venv", "pip"])
    result, calls = tree.run()
    assert (result.returncode, calls, result.stdout) == (0, [], "")


def test_an_interrupted_venv_is_made_again_from_nothing(tree: Tree) -> None:
    (tree.folder / "offline").touch()
    result, calls = tree.run()
    assert result.returncode != 0
    (tree.folder / ".venv/leftover").touch()
    (tree.folder / "offline").unlink()
    result, calls = tree.run()
    assert (result.returncode, calls) == (0, ["venv", "pip"])
    assert not (tree.folder / ".venv/leftover").exists()


def test_a_changed_pyproject_is_installed_into_the_venv_that_is_there(tree: Tree) -> None:
    tree.run()
    with (tree.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    result, calls = tree.run()
    assert (result.returncode, calls) == (0, ["pip"])
    assert tree.run()[1] == []


def test_a_failed_update_does_not_count_as_complete(tree: Tree) -> None:
    tree.run()
    with (tree.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    (tree.folder / "offline").touch()
    assert tree.run()[0].returncode != 0
    (tree.folder / "offline").unlink()
    assert tree.run()[1] == ["venv", "pip"]


def test_a_moved_tree_gets_its_own_venv(tree: Tree) -> None:
    tree.run()
    moved = tree.folder.with_name("moved")
    shutil.copytree(tree.folder, moved, symlinks=True)
    tree.folder = moved
    assert tree.run()[1] == ["venv", "pip"]


def test_a_venv_whose_interpreter_is_gone_is_made_again(tree: Tree) -> None:
    tree.run()
    (tree.folder / ".venv/bin/python").unlink()
    assert tree.run()[1] == ["venv", "pip"]


def test_what_is_missing_is_named(tree: Tree) -> None:
    words = tree.run()[0].stdout
    assert ("without ttnn" in words) == (find_spec("ttnn") is None)
    assert ("no transformers" in words) == (find_spec("transformers") is None)


def test_an_interpreter_that_cannot_be_used_is_refused_with_the_reason(tree: Tree) -> None:
    result, calls = tree.run(tree.folder / "nowhere")
    assert (result.returncode, calls) == (1, [])
    assert "nowhere" in result.stderr
    old = tree.folder / "old"
    old.write_text("#!/bin/sh\necho 'is Python 3.9; ttkern needs 3.10 to 3.13' >&2; exit 1\n")
    old.chmod(0o755)
    result, calls = tree.run(old)
    assert (result.returncode, calls) == (1, [])
    assert "3.10 to 3.13" in result.stderr
    assert not (tree.folder / ".venv").exists()


def test_the_stamp_names_the_pyproject_it_was_made_for(tree: Tree) -> None:
    tree.run()
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    assert digest in (tree.folder / ".venv/.complete").read_text()
