"""The JSON files of a checkpoint folder, read so that a broken one is named in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ttkern.errors import TtkernError


def read_json_object(path: Path, purpose: str) -> dict[str, Any]:
    """The JSON object in `path`. purpose: what the file is for, said where it is missing.

    Raises TtkernError naming the file: missing, unreadable, not UTF-8, not JSON, not an object, a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TtkernError(f"{path}: not found; a checkpoint folder needs it for {purpose}") from None
    except OSError as error:
        raise TtkernError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise TtkernError(f"{path}: not UTF-8 at byte {error.start}") from None
    return parse_json_object(text, str(path))


def parse_json_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object in `text`; `where` opens the message of the TtkernError that a broken one raises."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except _DuplicateKeyError as error:
        raise TtkernError(f"{where}: the key {error.args[0]!r} stands there twice") from None
    except json.JSONDecodeError as error:
        raise TtkernError(f"{where}: not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except (RecursionError, ValueError):  # nested too deeply; a number of thousands of digits
        raise TtkernError(f"{where}: not JSON that can be read: too deep, or a number too long") from None
    if not isinstance(value, dict):
        raise TtkernError(f"{where}: holds a JSON {type(value).__name__}; an object was expected")
    return value


class _DuplicateKeyError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKeyError(next(key for key in keys if keys.count(key) > 1))
    return result
