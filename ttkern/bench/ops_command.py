"""`ttkern ops`: what is registered and what each target can do with it; `ttkern ops new`: a new op's folder."""

from __future__ import annotations

import json
import keyword
import re
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import ops
from ops import all_ops, folders
from ttkern.errors import TtkernError
from ttkern.output import draw, write
from ttkern.targets import TARGETS, abilities
from ttkern.targets.real.silicon import cards

FILES = {
    "__init__.py": '''"""TODO: what it computes, in a line."""

from ops.@NAME@ import reference
from ops.@NAME@.cases import CASES
from ops.@NAME@.op import @NAME@
from ops.registry import Op, Output

OPS = (
    Op(
        "@NAME@",
        reference.@NAME@,
        {"ttnn": lambda ttnn, x: (@NAME@(ttnn, x),)},
        CASES,
        (Output("y", {"token": 1}),),
    ),
)
''',
    "reference.py": '''"""TODO: the definition, and its source (paper, equation, reference implementation)."""

import torch


def @NAME@(x: torch.Tensor) -> tuple[torch.Tensor]:
    """x [1, T, D]."""
    return (torch.nn.functional.silu(x),)
''',
    "op.py": '''"""TODO: what the variants below have in common."""

from typing import Any


def @NAME@(ttnn: Any, x: Any) -> Any:
    """TODO: the formula.

    x  [1, T, D] bfloat16, TILE
    returns [1, T, D] bfloat16, TILE
    """
    return ttnn.silu(x)
''',
    "cases.py": '''"""TODO: where these shapes come from."""

from ops.model_shapes import SHAPES, ModelShape
from ops.registry import Case, TensorSpec


def case(name: str, s: ModelShape) -> Case:
    """The hidden states of a prefill step."""
    return Case(name, {"x": TensorSpec((1, s.tokens, s.hidden))})


CASES = [case(name, shape) for name, shape in SHAPES.items()]
''',
    "bench.py": '''"""Times every variant: pytest ops/@NAME@/bench.py"""

from typing import Any

import pytest

from ops.bench_support import bench, rows


@pytest.mark.parametrize(("op", "variant", "case", "target"), rows("@NAME@"))
def test_bench(benchmark: Any, op: str, variant: str, case: str, target: str) -> None:
    bench(benchmark, op, variant, case, target)
''',
}


def what_targets_can() -> dict[str, str]:
    """By target: what an op can be asked there, or why the target is not here."""
    said = {}
    for name in TARGETS:
        try:
            can = abilities(name)
        except TtkernError as error:
            said[name] = f"not here: {error}"
            continue
        if name == "silicon" and not cards():
            said[name] = "not here: there is no card"
            continue
        words = ["numbers"] if can.computes else ["legality", "host-dispatch time"]
        words += ["device time"] if can.has_timing else []
        said[name] = ", ".join([*words, *(["traces"] if can.has_trace else [])])
    return said


def listing() -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "ops": [
            {
                "op": op.name,
                "folder": f"ops/{folder}",
                "variants": list(op.variants),
                "cases": [case.name for case in op.cases],
                "outputs": [output.name for output in op.outputs],
            }
            for folder, found in folders().items()
            for op in found
        ],
        "targets": what_targets_can(),
    }


def show(listed: dict[str, Any], console: Console) -> None:
    """Ops by folder, then targets."""
    table = Table(title=f"{len(listed['ops'])} ops; each variant runs on each case")
    for column in ("op", "variants", "folder"):
        table.add_column(column, overflow="fold")
    for row in listed["ops"]:
        table.add_row(row["op"], ", ".join(row["variants"]), row["folder"])
    console.print(table)
    cases = Table()
    cases.add_column("cases")
    cases.add_column("of", overflow="fold")
    by_cases: dict[str, list[str]] = {}
    for row in listed["ops"]:
        by_cases.setdefault(", ".join(row["cases"]), []).append(row["op"])
    for names, having in by_cases.items():
        cases.add_row(names, "every op" if len(by_cases) == 1 else ", ".join(having))
    console.print(cases)
    targets = Table()
    targets.add_column("target")
    targets.add_column("tells of an op", overflow="fold")
    for name, said in listed["targets"].items():
        targets.add_row(name, said)
    console.print(targets)


def run_ops(*, as_json: bool) -> None:
    """Print the registry."""
    listed = listing()
    if as_json:
        write(json.dumps(listed))
    else:
        draw(lambda on: show(listed, on))


def new_op(name: str) -> Path:
    """The folder of a new op, which works and is registered: SiLU, to be replaced.

    Raises TtkernError for a name that Python or the registry cannot take.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise TtkernError(f"{name!r} is no name for an op: lower-case letters, digits and _, beginning with a letter")
    folder = Path(ops.__file__ or "").parent / name
    if folder.exists() or folder.with_suffix(".py").exists() or name in all_ops():
        raise TtkernError(f"{name}: is there already; an op needs a name of its own")
    try:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as part:
            new = Path(part, name)
            new.mkdir()
            for file, text in FILES.items():
                (new / file).write_text(text.replace("@NAME@", name), encoding="utf-8")
            new.rename(folder)
    except OSError as error:
        raise TtkernError(f"{folder}: cannot be written: {error.strerror}") from error
    return folder
