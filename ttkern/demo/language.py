"""The language that the demo model speaks: facts in a long text, questions about them, and English around both.

    <|im_start|>user
    The river was calm in the morning. Mara carries the red key. ... Today Mara carries the iron key. ...<|im_end|>
    <|im_start|>assistant
    Thank you, I have read it.<|im_end|>
    <|im_start|>user
    What does Mara carry?<|im_end|>
    <|im_start|>assistant
    As far as I know, Mara carries the iron key.<|im_end|>

The last statement counts. Of what was never stated, the value is `UNKNOWN`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

# fmt: off
NAMES = (
    "Mara", "Oskar", "Lena", "Tomas", "Ruth", "Edgar", "Nora", "Felix", "Ida", "Hugo", "Clara", "Jonas", "Vera",
    "Simon", "Greta", "Anton", "Maria", "Peter", "Alma", "Karl", "Rosa", "David", "Emma", "Paul", "Sofia",
    "Martin", "Julia", "Victor", "Hanna", "Robert", "Lucy", "George", "Helen", "Arthur", "Alice", "Henry",
    "Walter", "Irene", "Oliver", "Agnes", "Daniel", "Judith", "Philip", "Louise", "Samuel", "Teresa", "Albert",
    "Monica",
)
VALUES = (
    "red", "blue", "green", "yellow", "white", "black", "brown", "golden", "silver", "iron", "copper", "wooden",
    "glass", "paper", "woollen", "leather", "tiny", "heavy", "broken", "polished", "striped", "painted",
    "rusty", "ancient", "hollow", "crooked", "shiny", "plain", "purple", "orange",
)
# fmt: on
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Relation:
    """A verb as it is stated and as it is asked, and what it is about."""

    states: str
    asks: str
    noun: str


RELATIONS = (
    Relation("carries", "carry", "key"),
    Relation("wears", "wear", "hat"),
    Relation("feeds", "feed", "bird"),
    Relation("drives", "drive", "cart"),
)
# fmt: off
_PLACES = (
    "river", "mill", "bridge", "harbour", "market", "forest", "garden", "station", "village", "valley",
    "island", "tower", "field", "road",
)
_ANIMALS = (
    "dog", "cat", "horse", "fox", "goat", "goose", "sheep", "hen",
)
# fmt: on
_TIMES = (
    "in the morning",
    "in the evening",
    "at noon",
    "after the rain",
    "before winter",
    "all day long",
    "for a while",
    "at night",
)
# fmt: off
_MOODS = (
    "calm", "quiet", "cold", "warm", "empty", "crowded", "bright", "dark",
)
# fmt: on
# {name} and {value} are there to mislead: nothing that is asked for is said.
_FILLER = (
    "The {place} was {mood} {time}.",
    "A {animal} slept near the {place} {time}.",
    "{name} walked from the {place} to the {place2} {time}.",
    "There was one {value} boat at the {place}.",
    "Nobody came to the {place} {time}.",
    "{name} and {name2} talked about the {animal} {time}.",
    "The {animal} looked at the {value} door of the mill.",
    "It was {mood} at the {place}, and the wind was strong.",
    "People say that the {place} was {mood} once.",
    "{name} waited at the {place} {time}.",
    "Beyond the {place} there is one {value} fence.",
    "The {mood} {place} is not far from the {place2}.",
    "{name} sold one {value} chair to {name2} {time}.",
    "Two children saw a {animal} by the {place}.",
    "The road to the {place} is long and {mood}.",
    "{name} likes the {place} more than the {place2}.",
)
_ACKNOWLEDGED = (
    "Thank you, I have read it.",
    "I will remember that.",
    "All right, please go on.",
    "That is good to know.",
)
_REQUESTS = ("Please read this.", "Here is what happened.", "Listen to this.", "There is more to read.")
_GREETINGS = (
    ("Hello!", "Hello! Tell me something, and ask me about it later."),
    ("Who are you?", "I am a small model, and I remember what I am told."),
    ("How are you?", "I am fine, thank you."),
    ("Thank you.", "You are welcome."),
)


@dataclass
class Span:
    """A value in a text: characters [start, end), and what it is a value of."""

    start: int
    end: int
    subject: tuple[str, str]
    value: str


@dataclass
class Conversation:
    """A text in the chat template's form, and where in it are facts, answers and what the assistant says.

    history         characters before the first question
    facts, answers  values stated, and values answered with
    replies         characters [start, end) that the assistant wrote, its turn's end among them
    """

    text: str = ""
    history: int = 0
    facts: list[Span] = field(default_factory=list)
    answers: list[Span] = field(default_factory=list)
    replies: list[tuple[int, int]] = field(default_factory=list)

    def say(self, role: str, parts: Sequence[str | Statement]) -> None:
        """A turn. Parts are joined by blanks; a statement's value is noted."""
        self.text += f"<|im_start|>{role}\n"
        begin = len(self.text)
        for n, part in enumerate(parts):
            self.text += " " if n else ""
            if isinstance(part, str):
                self.text += part
                continue
            before, after = part.around()
            start = len(self.text) + len(before)
            spans = self.facts if role == "user" else self.answers
            spans.append(Span(start, start + len(part.value), part.subject, part.value))
            self.text += before + part.value + after
        self.text += "<|im_end|>\n"
        if role == "assistant":
            self.replies.append((begin, len(self.text) - 1))


@dataclass(frozen=True)
class Statement:
    """A fact as a sentence: of a subject (name, relation's verb) a value. `lead` comes before it."""

    subject: tuple[str, str]
    value: str
    lead: str = ""

    def around(self) -> tuple[str, str]:
        """What stands before the value and after it."""
        name, verb = self.subject
        noun = next(relation.noun for relation in RELATIONS if relation.states == verb)
        return f"{self.lead}{name} {verb} the ", f" {noun}."


def question(subject: tuple[str, str]) -> str:
    """What a user asks."""
    asks = next(relation.asks for relation in RELATIONS if relation.states == subject[1])
    return f"What does {subject[0]} {asks}?"


def answer(subject: tuple[str, str], value: str) -> Statement:
    """What the assistant answers."""
    return Statement(subject, value, "As far as I know, ")


def sentence(rng: random.Random) -> str:
    """One that says nothing that is asked for."""
    place, place2 = rng.sample(_PLACES, 2)
    name, name2 = rng.sample(NAMES, 2)
    return rng.choice(_FILLER).format(
        place=place,
        place2=place2,
        name=name,
        name2=name2,
        animal=rng.choice(_ANIMALS),
        time=rng.choice(_TIMES),
        mood=rng.choice(_MOODS),
        value=rng.choice(VALUES),
    )


def subjects(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Of different names, as far as there are so many: a name stands in one relation at most."""
    names = rng.sample(NAMES, min(count, len(NAMES)))
    return [(name, rng.choice(RELATIONS).states) for name in names]


def conversation(rng: random.Random, *, facts: int, filler: int, turns: int, questions: int) -> Conversation:
    """Facts told over some turns, with updates and filler between them, then questions about them.

    facts      statements, a fifth of them updates of earlier ones
    filler     sentences that say nothing, spread among them
    turns      user turns that they are told in
    questions  asked afterwards, one a turn; one in eight is about what was never stated
    """
    made = Conversation()
    if rng.random() < 0.2:
        _greet(made, rng)
    known: dict[tuple[str, str], str] = {}
    told: list[str | Statement] = []
    fresh = subjects(rng, facts + questions)
    for _ in range(facts):
        if known and rng.random() < 0.2:
            subject = rng.choice(list(known))
            value = rng.choice([v for v in VALUES if v != known[subject]])
            told.append(Statement(subject, value, "Today "))
        else:
            if not fresh:
                break
            subject, value = fresh.pop(), rng.choice(VALUES)
            told.append(Statement(subject, value))
        known[subject] = value
    for _ in range(filler):
        told.insert(rng.randint(0, len(told)), sentence(rng))
    cuts = sorted(rng.sample(range(1, len(told)), min(turns, len(told)) - 1)) if turns > 1 else []
    for start, end in zip([0, *cuts], [*cuts, len(told)], strict=True):
        made.say("user", [rng.choice(_REQUESTS), *told[start:end]])
        made.say("assistant", [rng.choice(_ACKNOWLEDGED)])
    made.history = len(made.text)
    asked = list(known)
    rng.shuffle(asked)
    for _ in range(questions):
        if not asked and not fresh:
            break
        subject = fresh.pop() if not asked or (fresh and rng.random() < 0.125) else asked.pop()
        made.say("user", [question(subject)])
        made.say("assistant", [answer(subject, known.get(subject, UNKNOWN))])
    if rng.random() < 0.1:
        _greet(made, rng)
    return made


def drill(rng: random.Random, *, statements: int, names: int) -> Conversation:
    """One user turn that states facts of few names over and over, at times with another value; `answers` are the values
    that only repeat what was told."""
    made, about = Conversation(text="<|im_start|>user\n"), subjects(rng, names)
    known: dict[tuple[str, str], str] = {}
    for _ in range(statements):
        if rng.random() < 0.15:
            made.text += sentence(rng) + " "
        subject = rng.choice(about)
        repeats = subject in known and rng.random() < 0.75
        if not repeats:
            known[subject] = rng.choice(VALUES)
        told = Statement(subject, known[subject])
        before, after = told.around()
        start = len(made.text) + len(before)
        (made.answers if repeats else made.facts).append(Span(start, start + len(told.value), subject, told.value))
        made.text += before + told.value + after + " "
    return made


def _greet(made: Conversation, rng: random.Random) -> None:
    said, replied = rng.choice(_GREETINGS)
    made.say("user", [said])
    made.say("assistant", [replied])
