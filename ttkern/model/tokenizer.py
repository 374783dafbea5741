"""Text to token ids and back, from the checkpoint's tokenizer.json through the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from ttkern.errors import TtkernError
from ttkern.model.config import ModelConfig
from ttkern.model.json_file import read_json_object


class Tokenizer:
    """A byte-level BPE tokenizer, as the Qwen family has it: every text survives the way there and back.

    eos_token_ids  ids that end an answer
    vocab_size     ids known here: the largest one plus 1. The model's own vocabulary may be padded beyond it, and such
                   an id is no text at all

    Raises TtkernError naming the file: missing, unreadable, not byte-level.
    """

    def __init__(self, path: str | Path, eos_token_ids: Iterable[int]) -> None:
        self.path = Path(path)
        self._tokenizer = _open(self.path)
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocab_size = max(ids, default=-1) + 1
        self.eos_token_ids = self._checked(eos_token_ids)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self.token_bytes = lru_cache(maxsize=1 << 16)(self._token_bytes)

    @classmethod
    def from_folder(cls, folder: str | Path, config: ModelConfig) -> Tokenizer:
        """The tokenizer of a checkpoint folder.

        What ends an answer is what generation_config.json says and the eos_token of tokenizer_config.json; where
        neither says anything, what config.json says. Raises TtkernError also where the tokenizer has more ids than the
        model's vocabulary.
        """
        folder = Path(folder)
        tokenizer = cls(folder / "tokenizer.json", ())
        if tokenizer.vocab_size > config.vocab_size:
            raise TtkernError(
                f"{tokenizer.path}: its largest token id is {tokenizer.vocab_size - 1}, but the model's vocabulary"
                f" (vocab_size in config.json) is {config.vocab_size}"
            )
        eos = _generation_eos(folder / "generation_config.json")
        path = folder / "tokenizer_config.json"
        text = read_special_tokens(path).get("eos_token")
        if text is not None:
            token = tokenizer._tokenizer.token_to_id(text)
            if token is None:
                raise TtkernError(f"{path}: eos_token is {text!r}, which tokenizer.json does not have")
            eos.append(token)
        tokenizer.eos_token_ids = tokenizer._checked(eos or config.eos_token_ids)
        return tokenizer

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids. Special tokens written out in `text` become their ids; add_special_tokens adds those around it.

        Raises TtkernError for half of a surrogate pair, which no UTF-8 text has.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TtkernError(f"text: half of a surrogate pair at character {error.start}; it must be whole") from None
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids. Bytes that are no UTF-8 become U+FFFD; ids without a token become nothing."""
        skipped = self._special if skip_special_tokens else frozenset()
        return b"".join([self.token_bytes(token) for token in ids if token not in skipped]).decode(errors="replace")

    def token_text(self, token: int) -> str:
        """One token's text, special or not; what is only part of a character is U+FFFD."""
        return self.token_bytes(token).decode(errors="replace")

    def _checked(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        ids = frozenset(eos_token_ids)
        for token in ids:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise TtkernError(f"{self.path}: has no token {token!r}, which should end an answer (eos_token_id)")
        return ids

    def _token_bytes(self, token: int) -> bytes:
        """What a token stands for; those of all tokens, joined, are the text's bytes. Empty for an id without one."""
        piece = self._tokenizer.id_to_token(token) if 0 <= token < self.vocab_size else None
        if piece is None:
            return b""
        try:
            return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
        except KeyError:  # an added token, which is stored as plain text
            return piece.encode()


def read_special_tokens(path: Path) -> dict[str, str]:
    """bos_token, eos_token and the like of a tokenizer_config.json, as text; empty where there is no such file."""
    if not path.exists():
        return {}
    tokens = {}
    for name, value in read_json_object(path, "special tokens").items():
        if not name.endswith("_token"):
            continue
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _open(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise TtkernError(f"{path}: not found; a checkpoint folder needs its tokenizer there")
    decoder = _decoder_name(read_json_object(path, "the tokenizer").get("decoder"))
    if decoder != "ByteLevel":
        raise TtkernError(f"{path}: its decoder is {decoder}; only byte-level tokenizers (ByteLevel) are read")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise TtkernError(f"{path}: not a tokenizer: {' '.join(str(error).split())}") from None
    # A file may carry the settings of its training; a prompt is never cut or filled up behind the caller's back.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _decoder_name(decoder: Any) -> Any:
    if not isinstance(decoder, dict):
        return "missing"
    parts = decoder.get("decoders")
    if decoder.get("type") == "Sequence" and isinstance(parts, list) and len(parts) == 1:
        return _decoder_name(parts[0])
    return decoder.get("type")


def _generation_eos(path: Path) -> list[int]:
    if not path.exists():
        return []
    value = read_json_object(path, "the tokens that end an answer").get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or token < 0:
            raise TtkernError(f"{path}: eos_token_id is {value!r}; it must be a token id or a list of them")
    return ids


def _byte_characters() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary.

    GPT-2's table: printable Latin-1 stands for itself, the other bytes, in order, for the characters from U+0100 on.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(rest)}


_BYTE_OF_CHARACTER = _byte_characters()
