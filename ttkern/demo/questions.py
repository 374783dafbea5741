"""Held-out recall questions: one fact in a long conversation, asked for at a given distance."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokenizers import Tokenizer

from ttkern.demo.batches import encode
from ttkern.demo.language import VALUES, Conversation, Statement, answer, question, sentence, subjects

CHUNK = 128
DISTRACTORS = 4


@dataclass(frozen=True)
class Question:
    """A conversation up to the question, and what it asks for.

    history   token ids that an earlier request has sent: all turns before the question's
    prompt    token ids of all of it, ready for the assistant to speak
    fact      position of the value's token, stated last
    turns     user turns between the fact's and the question's
    word      the value asked for
    reply     token ids of the right answer; value: the place of the value among them
    """

    history: list[int]
    prompt: list[int]
    fact: int
    turns: int
    word: str
    reply: list[int]
    value: int

    @property
    def distance(self) -> int:
        """Tokens from the fact to the answer's first."""
        return len(self.prompt) - self.fact


def make_question(rng: random.Random, tokenizer: Tokenizer, distance: int, turns: int = 0) -> Question:
    """A fact, and a question about it `distance` tokens later (less a sentence's length at most), `turns` user turns
    after the fact's. Other facts stand before and after it; in one of three it has overridden an older one."""
    others = subjects(rng, DISTRACTORS + 1)
    asked, value = others.pop(), rng.choice(VALUES)
    before: list[str | Statement] = [sentence(rng) for _ in range(rng.randint(0, 16))]
    fact = Statement(asked, value)
    if rng.random() < 1 / 3:
        older = rng.choice([v for v in VALUES if v != value])
        before.insert(rng.randint(0, len(before)), Statement(asked, older))
        fact = Statement(asked, value, "Today ")
    after: list[str | Statement] = []
    for subject in others:
        side = before if rng.random() < 0.5 else after
        side.insert(rng.randint(0, len(side)), Statement(subject, rng.choice(VALUES)))
    best: Question | None = None
    while True:
        made = _ask(tokenizer, [*before, fact], after, asked, value, turns)
        if best is not None and made.distance > distance:
            return best
        best = made
        after.insert(rng.randint(0, len(after)), sentence(rng))


def _ask(
    tokenizer: Tokenizer,
    told: list[str | Statement],
    after: list[str | Statement],
    asked: tuple[str, str],
    value: str,
    turns: int,
) -> Question:
    made = Conversation()
    parts = [after[len(after) * n // (turns + 1) : len(after) * (n + 1) // (turns + 1)] for n in range(turns + 1)]
    made.say("user", ["Please read this.", *told, *parts[0]])
    made.say("assistant", ["Thank you, I have read it."])
    for part in parts[1:]:
        made.say("user", ["There is more to read.", *part])
        made.say("assistant", ["I will remember that."])
    history = made.text
    made.say("user", [question(asked)])
    prompt = made.text + "<|im_start|>assistant\n"
    made.say("assistant", [answer(asked, value)])
    encoded = encode(tokenizer, made)
    start = encoded.token_of(len(prompt))
    fact = next(encoded.token_of(span.start) for span in reversed(made.facts) if span.subject == asked)
    end = encoded.token_of(made.replies[-1][1] - 1) + 1
    return Question(
        history=encoded.ids[: encoded.token_of(len(history))],
        prompt=encoded.ids[:start],
        fact=fact,
        turns=turns,
        word=value,
        reply=encoded.ids[start:end],
        value=encoded.token_of(made.answers[-1].start) - start,
    )
