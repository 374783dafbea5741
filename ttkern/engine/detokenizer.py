"""Token ids to text as they come, at a cost per token that does not grow with the answer.

window   [ context | pending ]     the last tokens only; context gives the first pending token its neighbours
text     [   sent    | held  ]     held: a U+FFFD at the end, which may be the first bytes of a character
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
_LONGEST_WINDOW = 16  # tokens; longer only when the bytes never become characters
_LONGEST_HALF = 3  # bytes, so tokens, of an unfinished UTF-8 character


class Decodes(Protocol):
    """The one thing asked of a tokenizer here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class Detokenizer:
    """One answer's text. All that `add` and `flush` return, joined, is `tokenizer.decode` of all tokens."""

    def __init__(self, tokenizer: Decodes) -> None:
        self._decode = tokenizer.decode
        self._window: list[int] = []
        self._context = 0  # tokens of the window that are context
        self._sent = 0  # characters of the window's text that are out
        self._text = ""  # the window's text

    def add(self, token: int) -> str:
        """Text that became certain with this token; empty inside a character and for special tokens."""
        self._window.append(token)
        text = self._decode(self._window)
        if text == self._text and not self._decode([token]):
            self._window.pop()  # says nothing, now or later
            return ""
        self._text = text
        unfinished = text.endswith(REPLACEMENT)
        certain = max(self._sent, len(text) - unfinished)
        delta = text[self._sent : certain]
        self._sent = certain
        if not unfinished:
            self._advance()
        elif len(self._window) > _LONGEST_WINDOW:
            self._split()
        return delta

    def flush(self) -> str:
        """What is held back: the beginning of a character that never came to its end."""
        held = self._text[self._sent :]
        self._sent = len(self._text)
        return held

    def _advance(self) -> None:
        """All is out: what was pending becomes the context."""
        del self._window[: self._context]
        self._context = len(self._window)
        self._text = self._decode(self._window)
        self._sent = len(self._text)

    def _split(self) -> None:
        """Drop the beginning of a long run of invalid bytes, at a token border that no character crosses.

        Where the two parts decode to the whole, nothing is joined across the border; among the last four borders one
        is such, because an unfinished character has at most three bytes.
        """
        for border in range(len(self._window) - 1, len(self._window) - 2 - _LONGEST_HALF, -1):
            first, rest = self._decode(self._window[:border]), self._decode(self._window[border:])
            if first + rest == self._text:
                del self._window[:border]
                self._context = 0
                self._text, self._sent = rest, max(0, self._sent - len(first))
                return


class StopStrings:
    """Holds text back while it could be the beginning of a stop string; ends it where one is completed."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def add(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """New text in; the text that may be sent and the stop string that was completed, if any.

        Of several, the one that is completed first counts (of those, the longest), so that it does not matter how the
        text is cut. armed: while False nothing ends, but a beginning is still held back for when it is.
        """
        if not self._stops:
            return text, None
        whole = self._held + text
        if armed and (found := self._find(whole)) is not None:
            start, stop = found
            self._held = ""
            return whole[:start], stop
        certain = min(self._beginning(whole, stop) for stop in self._stops)
        self._held = whole[certain:]
        return whole[:certain], None

    def flush(self) -> str:
        """What is held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held

    def _find(self, whole: str) -> tuple[int, str] | None:
        found: tuple[int, int, str] | None = None  # end, start, stop
        for stop in self._stops:
            # What ends inside the held text was seen before, and did not count then.
            start = whole.find(stop, max(0, len(self._held) + 1 - len(stop)))
            if start >= 0 and (found is None or (start + len(stop), start) < found[:2]):
                found = (start + len(stop), start, stop)
        return None if found is None else found[1:]

    @staticmethod
    def _beginning(whole: str, stop: str) -> int:
        """Where the longest end of `whole` begins that is also a beginning of `stop`, not all of it."""
        start = whole.find(stop[0], max(0, len(whole) - len(stop) + 1))
        while start >= 0 and not stop.startswith(whole[start:]):
            start = whole.find(stop[0], start + 1)
        return start if start >= 0 else len(whole)
