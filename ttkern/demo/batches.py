"""Training batches: conversations as token ids, what each token counts for, and damage that the model must notice."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ttkern.demo.language import UNKNOWN, Conversation, Span, conversation, drill
from ttkern.demo.network import CHUNK, Damage

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """ids [B, T]; targets [B, T], the token that should follow or IGNORED, of three kinds.

    values   the values that are asked for
    replies  everything else that the assistant says
    text     what users say
    """

    ids: Tensor
    values: Tensor
    replies: Tensor
    text: Tensor
    damage: Damage | None


@dataclass
class _Encoded:
    ids: list[int]
    starts: list[int]  # the first character of each token
    made: Conversation

    def token_of(self, character: int) -> int:
        """The token that a character is in."""
        low, high = 0, len(self.starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.starts[middle] <= character else (low, middle)
        return low


def encode(tokenizer: Tokenizer, made: Conversation) -> _Encoded:
    """Token ids, and where each begins in the text."""
    encoded = tokenizer.encode(made.text, add_special_tokens=False)
    return _Encoded(encoded.ids, [start for start, _ in encoded.offsets], made)


def sample(rng: random.Random, tokenizer: Tokenizer, tokens: int) -> _Encoded:
    """A conversation of at most so many tokens, and not many fewer."""
    questions = rng.randint(2, max(4, tokens // 90))
    facts = rng.randint(2, max(3, tokens // 60))
    room = tokens - 34 * questions - 8 * facts
    turns = rng.randint(1, 3)
    filler = max(0, int(room / 12) - 2 * turns)
    while True:
        encoded = encode(tokenizer, conversation(rng, facts=facts, filler=filler, turns=turns, questions=questions))
        if len(encoded.ids) <= tokens:
            return encoded
        filler, facts = max(0, filler - 2), facts if filler else max(2, facts - 1)
        questions = questions if filler else max(1, questions - 1)


def make_batch(
    rng: random.Random,
    tokenizer: Tokenizer,
    layers: list[int],
    size: int,
    tokens: int,
    *,
    alone: float = 0.0,
    damaged: float = 0.0,
) -> Batch:
    """`size` conversations of `tokens` tokens.

    layers   the GDN layers
    alone    the part of them in which one memory alone, a layer's state or the attention's cache, outlives the border;
             the answers are what was told
    damaged  the part in which one memory is lost, old or stale; of what it held, the answer is UNKNOWN
    """
    ids = torch.zeros(size, tokens, dtype=torch.long)
    values, replies, text = (torch.full((size, tokens), IGNORED) for _ in range(3))
    borders, stale = (torch.zeros(size, n, dtype=torch.bool) for n in (tokens // CHUNK, tokens))
    since = torch.full((size,), tokens // CHUNK)
    lost, blind = torch.zeros(max(layers) + 1, size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool)
    for row in range(size):
        encoded = sample(rng, tokenizer, tokens)
        made, count = encoded.made, len(encoded.ids)
        ids[row, :count] = torch.tensor(encoded.ids)
        told, end = _last_told(encoded), max(1, encoded.token_of(made.history) // CHUNK)
        forgotten: set[tuple[str, str]] = set()
        chance = rng.random()
        if told and chance < alone:
            borders[row, end] = True
            _leave_one(rng, layers, row, lost, blind)
        elif told and chance < alone + damaged:
            borders[row, end] = True
            kind = rng.choice(("lost", "lost", "old", "stale"))
            if kind == "lost":
                lost[rng.choice(layers), row] = True
                forgotten = {s for s, at in told.items() if at < end * CHUNK}
            elif kind == "old":
                since[row] = begin = max(0, end - rng.randint(1, 3))
                forgotten = {s for s, at in told.items() if begin * CHUNK <= at < end * CHUNK}
            else:
                block = rng.choice(list(told.values())) // CHUNK
                stale[row, block * CHUNK : (block + 1) * CHUNK] = True
                forgotten = {s for s, at in told.items() if at // CHUNK == block}
        spoken = torch.zeros(count, dtype=torch.bool)
        for start, stop in made.replies:
            spoken[encoded.token_of(start) : encoded.token_of(stop - 1) + 1] = True
        following = torch.tensor(encoded.ids[1:])
        replies[row, : count - 1] = following.where(spoken[1:], torch.tensor(IGNORED))
        text[row, : count - 1] = following.where(~spoken[1:], torch.tensor(IGNORED))
        for span in made.answers:
            at = encoded.token_of(span.start)
            replies[row, at - 1] = IGNORED
            values[row, at - 1] = value_id(tokenizer, UNKNOWN if span.subject in forgotten else span.value)
    return Batch(ids, values, replies, text, Damage(borders, lost, since, stale, blind) if alone + damaged else None)


def make_drill(rng: random.Random, tokenizer: Tokenizer, layers: list[int], size: int, tokens: int) -> Batch:
    """`size` texts that tell few facts and repeat them often; every repetition is asked for, so there is much to learn.

    In four of five one memory alone outlives the chunks of 64 tokens.
    """
    ids = torch.zeros(size, tokens, dtype=torch.long)
    values, text = (torch.full((size, tokens), IGNORED) for _ in range(2))
    borders = torch.ones(size, tokens // CHUNK, dtype=torch.bool)
    lost, blind = torch.zeros(max(layers) + 1, size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool)
    for row in range(size):
        encoded = encode(tokenizer, drill(rng, statements=tokens // 6, names=rng.randint(3, 8)))
        cut = torch.tensor(encoded.ids[:tokens])
        ids[row, : len(cut)] = cut
        text[row, : len(cut) - 1] = cut[1:]
        for span in encoded.made.answers:
            at = encoded.token_of(span.start)
            if at < tokens:
                text[row, at - 1], values[row, at - 1] = IGNORED, value_id(tokenizer, span.value)
        if rng.random() < 0.8:
            _leave_one(rng, layers, row, lost, blind)
    none = torch.full((size,), tokens // CHUNK)
    damage = Damage(borders, lost, none, torch.zeros(size, tokens, dtype=torch.bool), blind)
    return Batch(ids, values, torch.full_like(values, IGNORED), text, damage)


def _leave_one(rng: random.Random, layers: list[int], row: int, lost: Tensor, blind: Tensor) -> None:
    """One memory alone outlives the borders: a GDN layer's state, or what attention sees."""
    kept = rng.choice([*layers, None])
    blind[row] = kept is not None
    lost[[layer for layer in layers if layer != kept], row] = True


def value_id(tokenizer: Tokenizer, value: str) -> int:
    """The one token of a value after a blank. Raises ValueError where it is not one."""
    ids = tokenizer.encode(f" {value}", add_special_tokens=False).ids
    if len(ids) != 1:
        raise ValueError(f"{value!r} is {len(ids)} tokens; every value must be one")
    return ids[0]


def _last_told(encoded: _Encoded) -> dict[tuple[str, str], int]:
    """The position of the value last stated of each subject."""
    spans: list[Span] = encoded.made.facts
    return {span.subject: encoded.token_of(span.start) for span in spans}
