"""A stand-in for Tenstorrent's SFPI compiler, so that real ttnn opens a mock board without it.

ttnn compiles a kernel for every program, and refuses to open a device where its compiler is missing. Kernels of a mock
board never run, so an empty one will do. The overlay is a runtime root of our own:

    <cache>/ttkern/ttnn-<version>-<hash of this file>/
        root/       links to all of the installed ttnn package, except for
        root/runtime/sfpi/compiler/bin/riscv-tt-elf-g++      the stand-in
        kernels/    ttnn's kernel cache, never shared with a card's
        logs/       what ttnn would write into the working directory

A card must never see it: its kernels are empty.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from pathlib import Path

from ttkern.errors import TtkernError

# What the wheel's tt_metal/sfpi-version and its precompiled firmware say the real one is; the build key depends on it.
VERSION_LINE = "riscv-tt-elf-g++ (tenstorrent/sfpi:7.89.0[1050]) 15.1.0"
MARK = "ttkern stand-in"
# The wheel's firmware for a Blackhole mock board, by build key.
FIRMWARE_KEY = "16245120264608145223"

COMPILER = f"""#!/bin/bash
# {MARK}: answers for the compiler and writes empty kernels. For mock boards only.
root=@ROOT@
object=
while [ $# -gt 0 ]; do
  case "$1" in
    --version) echo '{VERSION_LINE}'; exit 0;;
    -o) out=$2; shift;;
    -MF) dep=$2; shift;;
    -c|c++-header) object=1;;
  esac
  shift
done
[ -n "${{dep:-}}" ] && echo "$out:" > "$dep"
[ -n "$object" ] && {{ : > "$out"; exit 0; }}
case "$out" in
  */firmware/*)
    processor=$(basename "$(dirname "$out")")
    cp "$root/tt_metal/pre-compiled/{FIRMWARE_KEY}/$processor/$processor.elf" "$out";;
  *) cp "$root/runtime/empty.elf" "$out";;
esac
"""


def overlay(package: Path, version: str) -> Path:
    """The overlay folder for an installed ttnn package, made on first use.

    Raises TtkernError where ttnn could not use it: a path with a space, a cache folder that cannot be written.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ttkern"
    source = hashlib.sha256(Path(__file__).read_bytes() + str(package).encode()).hexdigest()[:12]
    place = base / f"ttnn-{version}-{source}"
    if " " in str(place):
        raise TtkernError(f"{place}: ttnn cannot use a path with a space; set XDG_CACHE_HOME to one without")
    if place.exists():
        return place
    try:
        base.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=base))
        _lay(new / "root", package, place / "root")
        for folder in ("kernels", "logs"):
            (new / folder).mkdir()
        new.rename(place)
    except OSError as error:
        if not place.exists():  # else another process was first
            raise TtkernError(f"{base}: cannot make the mock board's runtime root: {error}") from error
        shutil.rmtree(new, ignore_errors=True)
    return place


def is_stand_in(runtime_root: str | Path) -> bool:
    """Whether the compiler that ttnn would use under this runtime root is a stand-in."""
    compiler = Path(runtime_root) / "runtime/sfpi/compiler/bin/riscv-tt-elf-g++"
    try:
        return MARK.encode() in compiler.read_bytes()[:200]
    except OSError:
        return False


def _lay(root: Path, package: Path, final: Path) -> None:
    binaries = root / "runtime/sfpi/compiler/bin"
    binaries.mkdir(parents=True)
    for entry in package.iterdir():
        if entry.name != "runtime":
            (root / entry.name).symlink_to(entry)
    (root / "runtime/hw").symlink_to(package / "runtime/hw")
    (root / "runtime/empty.elf").write_bytes(empty_elf())
    compiler = binaries / "riscv-tt-elf-g++"
    compiler.write_text(COMPILER.replace("@ROOT@", str(final)))
    compiler.chmod(0o755)


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
