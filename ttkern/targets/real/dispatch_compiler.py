#!@PYTHON@ -IS
# @MARK@: for ttsim in fast dispatch. Never for a card: kernels that compute are empty.
"""Answers for Tenstorrent's compiler with a stock RISC-V GCC; laid into an overlay and called there by ttnn.

Compiled for real: BRISC's firmware, the dispatch kernels, and the kernels whose names MOVERS begin (a slash ends a
name). Those are both sides of an op: with one real and one waiting, the first would wait for the other for ever. Every
other kernel of a data-movement processor waits for its go message and returns; it is compiled once and kept. Compute
kernels are empty, the other firmware is the wheel's precompiled one.
"""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path("@ROOT@")
MOVERS = (
    "cq_",  # prefetch and dispatch
    "reader_unary_start_id/",  # ttnn.copy of tiles
    "writer_unary_start_id/",
    "reader_unary_stick_layout_interleaved_start_id/",  # ttnn.copy of rows
    "writer_unary_stick_layout_interleaved_start_id/",
    "reader_fill_cache",  # paged_fill_cache
    "writer_fill_cache",
)
GXX = "riscv64-unknown-elf-g++"
HW, RUNTIME = ROOT / "tt_metal/hw", ROOT / "runtime"
# Of a kernel's own definitions, what every kernel has: the rest is no matter to one that only waits.
COMMON = ("-DNOC_INDEX=", "-DNOC_MODE=")
WAITING = b"waits "


def run(command: list[str]) -> None:
    """Run a tool; its complaint is ours."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr[-3000:])
        sys.exit(1)


def machine(arch: str) -> list[str]:
    """Instruction set and calling convention of the baby cores."""
    extensions = "_zba_zbb" if arch == "blackhole" else ""
    return [f"-march=rv32im_zicsr{extensions}", "-mabi=ilp32"]


def stock_flags(args: list[str], arch: str) -> list[str]:
    """The line ttnn wrote for SFPI, without source and output, in words that a stock GCC understands."""
    dep, out = args.index("-MF"), args.index("-o")
    kept = [a for i, a in enumerate(args) if i not in (dep, dep + 1, out, out + 1) and not a.endswith(".cc")]
    kept = [a for a in kept if not a.startswith(("-ftt", "-flto", "-mcpu=", "-W")) and a not in ("-MMD", "-c")]
    kept = ["-std=c++20" if a == "-std=c++17" else a for a in kept]
    library = sorted(glob.glob("/usr/riscv64-linux-gnu/include/c++/*"))[-1]
    headers = [library, f"{library}/riscv64-linux-gnu", f"{RUNTIME}/stubs", "/usr/riscv64-linux-gnu/include"]
    return [
        *machine(arch),
        *kept,
        "-w",
        "-ffunction-sections",
        "-fdata-sections",
        "-fno-jump-tables",  # the loader refuses relocations in .data
        "-fno-tree-switch-conversion",
        "-D_GNU_SOURCE",
        "-DSYS_futex=98",
        *(word for header in headers for word in ("-isystem", header)),
    ]


def common_flags(flags: list[str]) -> list[str]:
    """What is left of a kernel's flags when nothing is told that is the kernel's own."""
    own = flags.index("-DKERNEL_BUILD") + 1 if "-DKERNEL_BUILD" in flags else len(flags)
    kept, skip = [], False
    for index, flag in enumerate(flags):
        if skip or flag == "-include":
            skip = flag == "-include"
            continue
        if flag.startswith("-I") and "/operations/" in flag:
            continue
        if index < own or not flag.startswith("-D") or flag.startswith((*COMMON, "-D_GNU", "-DSYS_")):
            kept.append(flag)
    return [*kept, '-DFULL_KERNEL_NAME="waits"'] if "-DKERNEL_BUILD" in flags else kept


def kept(suffix: str, key: list[str], command: list[str]) -> Path:
    """The file that a command makes with `-o`, made once for a key."""
    place = RUNTIME / "built"
    place.mkdir(exist_ok=True)
    path = place / (hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24] + suffix)
    if not path.exists():
        new = path.with_name(f".{os.getpid()}-{path.name}")
        run([*command, "-o", str(new)])
        new.rename(path)
    return path


def support(flags: list[str], arch: str, firmware: bool) -> list[str]:
    """Objects that every program is linked with."""
    noc = HW / f"firmware/src/tt-1xx/{arch}/noc.c"
    commands = [["-c", str(HW / "toolchain/substitutes.cpp")], ["-x", "c++", "-c", str(noc)]]
    objects = [str(kept(".o", [*flags, *command], [GXX, *flags, *command])) for command in commands]
    if firmware:
        start = [*machine(arch), "-c", str(HW / "toolchain/tmu-crt0.S"), f"-I{HW}/inc"]
        objects.insert(0, str(kept(".o", start, [GXX, *start])))
    return objects


def compile_object(args: list[str], out: Path, arch: str, kind: str) -> None:
    """Compile one object; beside it, as JSON, what it is to be linked with."""
    flags = stock_flags(args, arch)
    common = common_flags(flags)
    source = next(a for a in args if a.endswith(".cc"))
    if kind == "waiting":
        common.insert(0, f"-I{RUNTIME}/stubs/empty")
        command = [*common, "-c", source]
        out.write_bytes(WAITING + str(kept(".o", command, [GXX, *command])).encode())
    else:
        # GCC before 13 rejects static_assert(false) in an unused template.
        run([GXX, *(["-Dstatic_assert(...)="] if kind == "mover" else []), *flags, "-c", source, "-o", str(out)])
    out.with_suffix(".with").write_text(json.dumps(support(common, arch, kind == "firmware")))


def link(args: list[str], out: Path, arch: str, kind: str) -> None:
    """Link one program; one that only waits is linked once for each processor and firmware."""
    objects = [a for a in args if a.endswith(".o") and "runtime/hw/lib" not in a]
    others = [o for path in objects for o in json.loads(Path(path).with_suffix(".with").read_text())]
    flags = [a for a in args if a.startswith(("-Wl", "-T")) or a == "-nostartfiles"]
    find = [GXX, "-march=rv32im", "-mabi=ilp32", "-print-libgcc-file-name"]
    libgcc = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    command = [GXX, *machine(arch), "-nostdlib", "-Wl,--defsym=__erisc_jump_table=0", *flags]
    if kind == "firmware":
        command.append("-Wl,--gc-sections")
    if kind == "waiting":
        waiting = [Path(o).read_bytes().removeprefix(WAITING).decode() for o in objects]
        line = [*command, *others, *waiting, libgcc]
        shutil.copy(kept(".elf", line, line), out)
    else:
        run([*command, *others, *objects, libgcc, "-o", str(out)])


def kind_of(out: Path) -> str:
    """What becomes of an output: firmware, mover, waiting, or "" for what is not compiled."""
    processor, where = out.parent.name, str(out)
    if "/firmware/" in where:
        return "firmware" if processor == "brisc" else ""
    if processor not in ("brisc", "ncrisc"):
        return ""
    return "mover" if any(f"/kernels/{name}" in where for name in MOVERS) else "waiting"


def main(args: list[str]) -> None:
    """One call of the compiler."""
    if "--version" in args:
        print("@VERSION_LINE@")
        return
    out = Path(args[args.index("-o") + 1])
    if "-MF" in args:
        Path(args[args.index("-MF") + 1]).write_text(f"{out}:\n")
    arch = "blackhole" if any("blackhole" in a for a in args) else "wormhole"
    kind = kind_of(out)
    if "c++-header" in args or ("-c" in args and not kind):
        out.write_bytes(b"")
    elif "-c" in args:
        compile_object(args, out, arch, kind)
    elif kind:
        link(args, out, arch, kind)
    elif "/firmware/" in str(out):
        shutil.copy(RUNTIME / f"firmware-{arch}" / out.parent.name / f"{out.parent.name}.elf", out)
    else:
        shutil.copy(RUNTIME / "empty.elf", out)


if __name__ == "__main__":
    main(sys.argv[1:])
