"""The tokenizer and chat template of seeded checkpoints: byte-level BPE trained in place on a short text."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ttkern.errors import TtkernError

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
SMALLEST_VOCAB = 256 + len(SPECIAL_TOKENS)

# ChatML. A content is a string or a list of text parts, as clients send it.
CHAT_TEMPLATE = """\
{%- macro text_of(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is none or content is undefined -%}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type != "text" -%}
                {{- raise_exception("content of type " ~ part.type ~ " is not understood; only text is") -}}
            {%- endif -%}
            {{- part.text -}}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
    {{- raise_exception("this model knows no tools") -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role not in ["system", "user", "assistant"] -%}
        {{- raise_exception("role " ~ message.role ~ " is not known; there are system, user and assistant") -}}
    {%- endif -%}
    {%- if message.role == "system" and not loop.first -%}
        {{- raise_exception("a system message must come first") -}}
    {%- endif -%}
    {{- "<|im_start|>" ~ message.role ~ "\\n" ~ text_of(message.content) ~ "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
{%- endif -%}
"""

TEXT = """\
A prompt is read before it is answered. Reading is called prefill: every token of the prompt passes through every
layer once, many tokens at a time, and what later tokens need is kept. Answering is called decode: one token at a
time, each of them reading what was kept. A long prompt makes the reading slow, and the first word of the answer
waits for it.

Most layers of this model keep a state of fixed size. A token writes its value under its key, and before it writes,
it takes out what was stored there already; this is the delta rule. A gate lets old memories fade. Every fourth
layer looks back at all the tokens instead, and for that it keeps their keys and values in blocks of memory, one
page after another.

Hello! How are you today? I am fine, thank you. What can I do for you? Please tell me what you would like to know,
and I will try to help. Yes, of course. No, I do not think so. It is a good question, but I am not sure that I know
the answer.

The sun rises in the east and sets in the west. In spring the river is high, because the snow has gone from the
mountains. There were three children who lived in a small house by the sea. In the morning they went down to the
water to look for shells, and in the evening they sat around the fire and told each other stories about ships,
storms and far countries. "Where does the wind come from?" asked the youngest. "From behind the hills," said her
sister, "and when it is tired it goes back there."

To make bread you need flour, water, salt and time. Mix them well, let the dough rest until it has doubled, fold
it, and rest it again. Bake it in a hot oven until the crust is brown and it sounds hollow when you knock on it.

def add(first, second):
    return first + second

for index in range(10):
    if index % 2 == 0:
        print(index, "is even")
    else:
        print(index, "is odd")

{"name": "example", "values": [1, 2, 3], "nested": {"true": true, "false": false, "none": null}}

Numbers: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 48, 64, 100, 128, 256, 512, 1,000, 1,024, 2,048.
"""


def train_tokenizer(vocab_size: int, texts: Iterable[str] = (TEXT,)) -> tokenizers.Tokenizer:
    """Byte-level BPE with at most `vocab_size` ids: 256 bytes, merges found in `texts`, then the special tokens.

    The same size and texts gives the same tokenizer, always. Raises TtkernError for a size below `SMALLEST_VOCAB`.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise TtkernError(
            f"vocab_size is {vocab_size}; a byte-level tokenizer has at least {SMALLEST_VOCAB} ids"
            " (without a tokenizer it may be smaller)"
        )
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(text, normalized=False, special=True) for text in SPECIAL_TOKENS]
    )
    return tokenizer
