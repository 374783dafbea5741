"""Writing a report to stdout: whole, or with a reason; an exit code never means anything else than it says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from ttkern.errors import TtkernError

BROKEN_PIPE = 141  # as of a program that SIGPIPE ended


def write(text: str, out: TextIO | None = None) -> None:
    """Text and a newline.

    Raises TtkernError where it cannot be written, and SystemExit where nobody reads any more.
    """
    out = out or sys.stdout
    try:
        out.write(f"{text}\n")
        out.flush()
    except BrokenPipeError as error:
        _drop(out)
        raise SystemExit(BROKEN_PIPE) from error
    except OSError as error:
        _drop(out)
        raise TtkernError(f"the report cannot be written to stdout: {error.strerror}") from error


def draw(what: Callable[[Console], None], out: TextIO | None = None) -> None:
    """What a function prints on a console; errors as of `write`."""
    console = Console(file=out or sys.stdout)
    with console.capture() as drawn:
        what(console)
    write(drawn.get().rstrip("\n"), out)


def own_stdout() -> TextIO:
    """stdout for the report alone: what a library or a simulator prints there goes to stderr from now on."""
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def _drop(out: TextIO) -> None:
    """What is still buffered goes nowhere, so that Python's own flush at the end says nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)
