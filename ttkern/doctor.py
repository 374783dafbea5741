"""What is installed here, and which targets can open: one line each."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from ttkern import __version__
from ttkern.errors import TtkernError
from ttkern.output import draw, write
from ttkern.targets import TARGETS
from ttkern.targets.real.library import find_ttnn
from ttkern.targets.real.overlay import cache_folder
from ttkern.targets.real.silicon import CARDS, cards
from ttkern.targets.real.simulated import GXX, SIMULATOR, sfpi

PACKAGES = ("torch", "ttnn", "transformers", "wolfpine")
PROBE_SECONDS = 120
# In a process of its own: ttnn opens one cluster in a process, and a broken installation may end it.
PROBE = """
import sys
from ttkern.errors import TtkernError
from ttkern.targets import open_target
try:
    target = open_target(sys.argv[1])
except TtkernError as error:
    sys.exit(f"ttkern: {error}")
can = [word for word, yes in (("data", target.has_data), ("arithmetic", target.computes), ("traces", target.has_trace))
       if yes]
print("can:", ", ".join(can) or "legality, memory and host cost only", file=sys.stderr)
target.close()
"""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is there, and what was found or what to do."""

    what: str
    ok: bool
    found: str


def examine() -> list[Finding]:
    """Look at everything. Takes some seconds: each target is opened."""
    findings = [Finding("ttkern", True, f"{__version__}, Python {platform.python_version()}, {platform.machine()}")]
    findings += map(_package, PACKAGES)
    findings += [_compiler(), _cross_compiler(), _simulator(), _cards(), _memory(), _disk()]
    for name in track(TARGETS, "opening targets", console=Console(stderr=True), transient=True):
        findings.append(_open(name))
    return findings


def _package(name: str) -> Finding:
    try:
        if name == "ttnn":
            find_ttnn("mock")
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, "not installed")
    except TtkernError as error:
        return Finding(name, False, str(error))


def _compiler() -> Finding:
    try:
        path = sfpi(find_ttnn("silicon"))
    except TtkernError:
        return Finding("SFPI compiler", False, "ttnn is not installed")
    return Finding("SFPI compiler", path is not None, str(path or "none: kernels do not compute on a simulator"))


def _cross_compiler() -> Finding:
    path = shutil.which(GXX)
    return Finding("RISC-V GCC", path is not None, path or f"no {GXX}: ttsim needs it where SFPI is absent")


def _simulator() -> Finding:
    named = os.environ.get(SIMULATOR)
    return Finding("simulator", bool(named), named or f"{SIMULATOR} is not set")


def _cards() -> Finding:
    found = cards()
    return Finding("cards", bool(found), ", ".join(map(str, found)) or f"none: {CARDS} does not exist")


def _memory() -> Finding:
    try:
        gib = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    except (ValueError, OSError):  # not every system tells
        return Finding("free memory", False, "this system does not tell")
    for line in lines:
        if line.startswith("MemAvailable:"):
            gib = int(line.split()[1]) / 2**20
    return Finding("free memory", gib >= 4, f"{gib:.1f} GiB" + ("" if gib >= 4 else ": less than 4 may not do"))


def _disk() -> Finding:
    folder = cache_folder()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return Finding("cache folder", False, f"{folder}: {there} is no folder that can be written to")
    gib = shutil.disk_usage(there).free / 2**30
    return Finding("cache folder", gib >= 1, f"{folder}, {gib:.1f} GiB free")


def _open(name: str) -> Finding:
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, name], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(f"target {name}", False, f"did not open within {PROBE_SECONDS} s")
    lines = [line for line in done.stderr.splitlines() if line.startswith(("can:", "ttkern:"))]
    said = lines[-1] if lines else (done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"])[-1]
    return Finding(f"target {name}", done.returncode == 0, said.removeprefix("ttkern: ").removeprefix("can: "))


def run_doctor(*, as_json: bool) -> bool:
    """Print what was found; whether the emulated target opens, without which nothing works."""
    findings = examine()
    if as_json:
        write(json.dumps([asdict(finding) for finding in findings]))
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("", "what", "found"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            table.add_row("[green]yes" if finding.ok else "[yellow]no", finding.what, finding.found)
        draw(lambda console: console.print(table))
    return next(finding.ok for finding in findings if finding.what == "target emulated")
