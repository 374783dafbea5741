"""A runtime root with a stand-in for Tenstorrent's SFPI compiler, so that real ttnn opens a device without it.

ttnn compiles kernels and firmware at run time, and refuses to open a device where its compiler is missing. Where no
kernel has to compute, a stand-in will do:

    null      nothing is compiled, every kernel is empty: mock boards, and simulators in slow dispatch
    dispatch  a stock RISC-V GCC compiles what moves data and launches programs; kernels that would compute only wait
              for their go message and return: ttsim in fast dispatch, with real queues, traces and copies

    <cache>/ttkern/ttnn-<version>-<kind>-<hash>/
        root/       links to all of the installed ttnn package, except for
        root/runtime/sfpi/compiler/bin/riscv-tt-elf-g++      the stand-in
        kernels/    ttnn's kernel cache, never shared with a card's
        logs/       what ttnn would write into the working directory

A card must never see it: its kernels are empty.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ttkern.errors import TtkernError
from ttkern.targets.real.library import VERSION

# What the wheel's tt_metal/sfpi-version and its precompiled firmware say the real one is; the build key depends on it.
VERSION_LINE = "riscv-tt-elf-g++ (tenstorrent/sfpi:7.89.0[1050]) 15.1.0"
MARK = "ttkern stand-in"
# The wheel's precompiled firmware, by build key.
FIRMWARE = {"blackhole": "16245120264608145223", "wormhole": "1003041148146844629"}
FOLDERS = ("kernels", "logs")
COMPILERS = {"null": "null_compiler.sh", "dispatch": "dispatch_compiler.py"}


@dataclass(frozen=True)
class Overlay:
    """A laid overlay, and the variables that make ttnn use it."""

    place: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """For ttnn's process."""
        return {
            "TT_METAL_RUNTIME_ROOT": str(self.place / "root"),
            "TT_METAL_CACHE": f"{self.place / 'kernels'}/",
            "TT_METAL_LOGS_PATH": str(self.place / "logs"),
        }


def overlay(package: Path, kind: str) -> Overlay:
    """The overlay of a kind for an installed ttnn package, made on first use and mended where something is gone.

    Raises TtkernError where ttnn could not use it: a path that would not pass through its shell commands, a cache
    folder that cannot be written.
    """
    base = cache_folder()
    script = Path(__file__).with_name(COMPILERS[kind]).read_text()
    parts = (Path(__file__).read_text(), script, str(package), sys.executable)
    place = base / f"ttnn-{VERSION}-{kind}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
    if odd := sorted(set(re.findall(r"[^\w/.,+@%=:-]", str(place), re.ASCII))):
        raise TtkernError(
            f"{place}: ttnn's compiler commands cannot hold a path with {' '.join(map(repr, odd))};"
            " set XDG_CACHE_HOME to a plain one"
        )
    entries = _entries(place / "root", package, script)
    try:
        if not _whole(place, entries):
            base.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=base) as new:
                _lay(Path(new, "overlay"), entries)
                _put(Path(new, "overlay"), place, Path(new, "broken"), entries)
            if not _whole(place, entries):
                raise OSError(f"{place} was made and is not whole")
    except OSError as error:
        raise TtkernError(f"{base}: cannot make ttnn's runtime root: {error}") from error
    return Overlay(place)


def cache_folder() -> Path:
    """Where overlays are made. A relative XDG_CACHE_HOME is none: the XDG base directory specification."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "ttkern"


def compiler_of(runtime_root: str | Path) -> Path:
    """Where ttnn looks for its compiler first."""
    return Path(runtime_root) / "runtime/sfpi/compiler/bin/riscv-tt-elf-g++"


def is_stand_in(runtime_root: str | Path) -> bool:
    """Whether the compiler that ttnn would use under this runtime root is a stand-in."""
    try:
        return MARK.encode() in compiler_of(runtime_root).read_bytes()[:200]
    except OSError:
        return False


def _entries(root: Path, package: Path, script: str) -> dict[str, Path | bytes]:
    """What lies where under an overlay: links by what they point to, files by what they hold."""
    words = {"@MARK@": MARK, "@VERSION_LINE@": VERSION_LINE, "@PYTHON@": sys.executable, "@ROOT@": str(root)}
    for word, value in words.items():
        script = script.replace(word, value)
    compiler = compiler_of("root")
    return {
        **{f"root/{entry.name}": entry for entry in package.iterdir() if entry.name != "runtime"},
        "root/runtime/hw": package / "runtime/hw",
        **{f"root/runtime/firmware-{arch}": package / "tt_metal/pre-compiled" / key for arch, key in FIRMWARE.items()},
        "root/runtime/empty.elf": empty_elf(),
        "root/runtime/stubs/gnu/stubs-ilp32.h": b"",
        "root/runtime/stubs/empty/kernel_includes.hpp": b"void kernel_main() {}\n",
        str(compiler): script.encode(),
    }


def _whole(place: Path, entries: Mapping[str, Path | bytes]) -> bool:
    """Whether all of an overlay is there."""

    def there(path: Path, content: Path | bytes) -> bool:
        if isinstance(content, Path):
            return path.is_symlink() and Path(os.readlink(path)) == content
        return path.is_file() and path.read_bytes() == content

    return all((place / folder).is_dir() for folder in FOLDERS) and all(
        there(place / name, content) for name, content in entries.items()
    )


def _lay(place: Path, entries: Mapping[str, Path | bytes]) -> None:
    for folder in FOLDERS:
        (place / folder).mkdir(parents=True)
    for name, content in entries.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
    compiler_of(place / "root").chmod(0o755)


def _put(new: Path, place: Path, broken: Path, entries: Mapping[str, Path | bytes]) -> None:
    """A new overlay at its place; what lay there goes to `broken`."""
    try:
        new.rename(place)
    except OSError:
        if _whole(place, entries):  # another process was first
            return
        place.rename(broken)
        new.rename(place)


def empty_elf(address: int = 0x6000) -> bytes:
    """An RV32 executable of one `ret`. It has a relocation section, without which ttnn's loader refuses it."""
    sections: list[tuple[bytes, tuple[int, ...], bytes]] = [
        # name, (type, flags, address, link, info, align, entry size), content
        (b".text", (1, 6, address, 0, 0, 16, 0), struct.pack("<I", 0x00008067)),
        (b".rela.text", (4, 0x40, 0, 3, 1, 4, 12), struct.pack("<III", address, 1 << 8, 0)),
        (b".symtab", (2, 0, 0, 4, 1, 4, 16), bytes(16) + struct.pack("<IIIBBH", 1, address, 4, 0x12, 0, 1)),
        (b".strtab", (3, 0, 0, 0, 0, 1, 0), b"\0_start\0"),
        (b".shstrtab", (3, 0, 0, 0, 0, 1, 0), b""),
    ]
    names = b"\0" + b"\0".join(name for name, _, _ in sections) + b"\0"
    header_bytes = 52 + 32
    blob, table = bytearray(header_bytes), [bytes(40)]
    for name, (kind, flags, where, link, info, align, entry), content in sections:
        content = content or names
        blob.extend(bytes(-len(blob) % max(align, 4)))
        offset = names.index(b"\0" + name + b"\0") + 1
        table.append(struct.pack("<10I", offset, kind, flags, where, len(blob), len(content), link, info, align, entry))
        blob.extend(content)
    blob.extend(bytes(-len(blob) % 4))
    text = struct.unpack("<10I", table[1])[4]
    ident = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)
    blob[:52] = ident + struct.pack(
        "<HHIIIIIHHHHHH", 2, 243, 1, address, 52, len(blob), 0, 52, 32, 1, 40, len(table), len(table) - 1
    )
    blob[52:84] = struct.pack("<8I", 1, text, address, address, 4, 4, 5, 16)
    return bytes(blob) + b"".join(table)
