"""Log probabilities in the two shapes of OpenAI's API, and the strings that stand for tokens in them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ttkern.engine.runner_protocol import Sampled
from ttkern.model.tokenizer import Tokenizer

_LOWEST_LOGPROB = -9999.0  # stands for -inf, which JSON cannot carry


class TokenTexts:
    """The bytes and the printable string of every token.

    A token that is not whole characters (part of a multi-byte one) is written as OpenAI writes it, "bytes:\\xf0\\x9f",
    so that two different halves never look the same.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.string = lru_cache(maxsize=1 << 16)(self._string)
        self.output_bytes = lru_cache(maxsize=1 << 16)(self._output_bytes)

    def data(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def _string(self, token: int) -> str:
        data = self.data(token)
        if not data:  # a model's vocabulary may be larger than its tokenizer's
            return f"token_id:{token}"
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _output_bytes(self, token: int) -> bytes:
        """What the token adds to generated text: nothing where it is special."""
        return self.data(token) if self._tokenizer.decode([token], skip_special_tokens=True) else b""


class CharacterCounter:
    """Where each token starts in a text, in characters. All tokens of one character start at that character."""

    def __init__(self, start: int = 0) -> None:
        self.position = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def advance(self, data: bytes) -> int:
        start = self.position
        self.position += len(self._decoder.decode(data))
        return start


def _finite(logprob: float | None) -> float | None:
    if logprob is None:
        return None
    return max(_LOWEST_LOGPROB, logprob)


def completion_logprobs(
    texts: TokenTexts, sampled: Sequence[Sampled], offsets: Sequence[int], first_unscored: int | None = None
) -> dict[str, list[Any]]:
    """The shape of /v1/completions: four parallel lists.

    sampled, offsets: the tokens and where each starts in the text; first_unscored: a prompt's first token, which has no
    predecessor to be predicted from and gets null.
    """
    tokens = [] if first_unscored is None else [texts.string(first_unscored)]
    token_logprobs: list[float | None] = [None] * len(tokens)
    top_logprobs: list[dict[str, float | None] | None] = [None] * len(tokens)
    for entry in sampled:
        string = texts.string(entry.token)
        tokens.append(string)
        token_logprobs.append(_finite(entry.logprob))
        top: dict[str, float | None] = {}
        for candidate in entry.top:
            top.setdefault(texts.string(candidate.token), _finite(candidate.logprob))
        top.setdefault(string, _finite(entry.logprob))
        top_logprobs.append(top)
    return {
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "text_offset": list(offsets),
    }


def chat_logprobs(texts: TokenTexts, sampled: Sequence[Sampled]) -> dict[str, Any]:
    """The shape of /v1/chat/completions: one entry per token, with its bytes."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        return {"token": texts.string(token), "bytes": list(texts.data(token)), "logprob": _finite(logprob)}

    content = [
        {**entry(item.token, item.logprob), "top_logprobs": [entry(c.token, c.logprob) for c in item.top]}
        for item in sampled
    ]
    return {"content": content, "refusal": None}
