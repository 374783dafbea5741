"""Real ttnn on a simulator that the user names with TT_METAL_SIMULATOR.

    a folder        wolfpine's (pip install wolfpine): slow dispatch. Tensors go to the device and back, bit for bit;
                    no kernel runs.
    libttsim.so     Tenstorrent's ttsim, beside a soc_descriptor.yaml: fast dispatch. Queues, traces, copies are real.

With SFPI installed ttnn's own compiler is used and kernels compute; without it they are stand-ins that do not.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ttkern.errors import TtkernError
from ttkern.targets.real.library import RealDevice, find_ttnn, open_real
from ttkern.targets.real.overlay import compiler_of, is_stand_in, overlay

SIMULATOR = "TT_METAL_SIMULATOR"
GXX = "riscv64-unknown-elf-g++"
CROSS = "gcc-riscv64-unknown-elf libstdc++-12-dev-riscv64-cross libc6-dev-riscv64-cross"


@dataclass(frozen=True)
class Simulator:
    """What TT_METAL_SIMULATOR names, found and not opened.

    computes  SFPI is there, so kernels are compiled and run
    fast      fast dispatch: its programs go through command queues, and traces can be captured
    """

    package: Path
    path: Path
    computes: bool
    fast: bool


def find_simulator() -> Simulator:
    """Raises TtkernError where there is none, or ttnn is missing."""
    package, path = find_ttnn("simulated"), simulator()
    return Simulator(package, path, computes=sfpi(package) is not None, fast=path.is_file())


def open_simulated_device(trace_region_size: int = 0) -> RealDevice:
    """ttnn and a device on the simulator that TT_METAL_SIMULATOR names.

    Raises TtkernError where there is none, where ttnn or a compiler is missing, or this process has opened another
    cluster.
    """
    found = find_simulator()
    environment: dict[str, str] = {SIMULATOR: str(found.path)}
    if not found.computes:
        if found.fast:
            need_dispatch_compiler(found.path)
        environment.update(overlay(found.package, "dispatch" if found.fast else "null").environment)
    if not found.fast:
        # Without it the simulator's own python3 is the first on PATH; one without wolfpine hangs without a word.
        environment.update({"TT_METAL_SLOW_DISPATCH_MODE": "1", "WOLFPINE_PYTHON": sys.executable})
    return open_real(f"the simulator {found.path}", environment, trace_region_size if found.fast else 0)


def simulator(environment: Mapping[str, str] = os.environ) -> Path:
    """What TT_METAL_SIMULATOR names. Raises TtkernError where that cannot be a simulator."""
    named = environment.get(SIMULATOR)
    if not named:
        raise TtkernError(
            f"target 'simulated' needs {SIMULATOR}: the path of ttsim's libttsim.so, or the folder that"
            " framework.sim.simulator_dir('blackhole') gives (pip install wolfpine)"
        )
    path = Path(named)
    if path.is_dir():
        wanted = path / "run.sh"
        if not wanted.exists():
            raise TtkernError(f"{SIMULATOR} is {path}: a simulator's folder holds a run.sh, this one does not")
    elif not path.is_file():
        raise TtkernError(f"{SIMULATOR} is {path}, which does not exist")
    elif not path.with_name("soc_descriptor.yaml").exists():
        raise TtkernError(
            f"{SIMULATOR} is {path}: a soc_descriptor.yaml must lie beside it; for Blackhole copy"
            " tt_metal/soc_descriptors/blackhole_140_arch.yaml from the installed ttnn package"
        )
    return path


def sfpi(package: Path) -> Path | None:
    """Tenstorrent's own compiler, where ttnn would find it."""
    roots = (compiler_of(package), Path("/opt/tenstorrent/sfpi/compiler/bin/riscv-tt-elf-g++"))
    return next((path for path in roots if path.exists()), None) if not is_stand_in(package) else None


def need_dispatch_compiler(library: Path) -> None:
    """Refuse fast dispatch where the stand-in has nothing to compile with. Raises TtkernError."""
    descriptor = library.with_name("soc_descriptor.yaml").read_text()
    if "blackhole" not in descriptor.lower():
        raise TtkernError(f"{library}: without SFPI only a Blackhole runs in fast dispatch; this is another chip")
    if shutil.which(GXX) is None or not glob.glob("/usr/riscv64-linux-gnu/include/c++/*"):
        raise TtkernError(f"target 'simulated' on ttsim needs SFPI, or a RISC-V GCC: apt install {CROSS}")
