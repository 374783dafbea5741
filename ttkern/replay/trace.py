"""The trace format: one JSON object a line, one request each.

    {"session": "agent-0", "turn": 1, "arrival": 2.5, "prompt": [["agent-0/turn-1", 0, 2016]], "output_tokens": 32}

session, turn   turns of a session follow each other; a turn's prompt is all that was said before, and then `prompt`
arrival         seconds: of turn 0 from the beginning, of a later turn from the end of the answer before
prompt          token ids, or parts [stream, start, tokens]: that many tokens of an endless stream of random ones that
                its name decides; two prompts share what they take from one stream
output_tokens   length of the answer
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ttkern.errors import TtkernError

Part = tuple[str, int, int]


@dataclass(frozen=True)
class TraceRequest:
    """One line of a trace."""

    session: str
    turn: int
    arrival: float
    prompt: tuple[Part, ...] | tuple[int, ...]
    output_tokens: int

    def tokens(self, vocab_size: int) -> list[int]:
        """Token ids of `prompt`."""
        ids: list[int] = []
        for part in self.prompt:
            if isinstance(part, int):
                ids.append(part % vocab_size)
            else:
                name, start, count = part
                ids += _stream(name, start + count, vocab_size)[start:]
        return ids


@lru_cache(maxsize=256)
def _stream(name: str, length: int, vocab_size: int) -> list[int]:
    return random.Random(name).choices(range(vocab_size), k=length)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """One line each."""
    path.write_text("".join(json.dumps(asdict(request)) + "\n" for request in requests), encoding="utf-8")


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a file. Raises TtkernError, naming the line, for what is no trace."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TtkernError(f"{path}: cannot be read: {error}") from error
    requests = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                requests.append(_request(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
                raise TtkernError(f"{path}, line {number}: {what}") from error
    if not requests:
        raise TtkernError(f"{path}: holds no request")
    turns = {(request.session, request.turn) for request in requests}
    for request in requests:
        if request.turn and (request.session, request.turn - 1) not in turns:
            raise TtkernError(f"{path}: session {request.session!r} has turn {request.turn} and not the one before")
    if len(turns) != len(requests):
        raise TtkernError(f"{path}: a turn of a session appears twice")
    return requests


def _request(fields: Any) -> TraceRequest:
    if not isinstance(fields, dict):
        raise ValueError("is no JSON object")
    unknown = sorted(set(fields) - set(TraceRequest.__dataclass_fields__))
    if unknown:
        raise ValueError(f"has a field {unknown[0]!r} that is not known")
    prompt = fields["prompt"]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError("prompt must be a list of token ids, or of [stream, start, tokens]")
    parts = all(
        isinstance(p, list)
        and len(p) == 3
        and isinstance(p[0], str)
        and all(type(n) is int for n in p[1:])
        and p[1] >= 0 < p[2]
        for p in prompt
    )
    if not parts and not all(type(p) is int and p >= 0 for p in prompt):
        raise ValueError("prompt must be a list of token ids, or of [stream, start, tokens]")
    numbers = {name: fields[name] for name in ("turn", "output_tokens")}
    for name, least in (("turn", 0), ("output_tokens", 1)):
        if type(numbers[name]) is not int or numbers[name] < least:
            raise ValueError(f"{name} is {numbers[name]!r}; it must be an integer of at least {least}")
    arrival = fields["arrival"]
    if type(arrival) not in (int, float) or not 0 <= arrival < 1e9:
        raise ValueError(f"arrival is {arrival!r}; it must be seconds, at least 0")
    if not isinstance(fields["session"], str):
        raise ValueError(f"session is {fields['session']!r}; it must be a string")
    items = tuple((p[0], p[1], p[2]) for p in prompt) if parts else tuple(prompt)
    return TraceRequest(fields["session"], numbers["turn"], float(arrival), items, numbers["output_tokens"])
