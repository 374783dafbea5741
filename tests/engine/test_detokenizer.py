"""Truth: what the `tokenizers` package decodes from all tokens at once, and Python's str.find."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ttkern.engine.detokenizer import Detokenizer, StopStrings

TEXT = "Zażółć gęślą jaźń: 你好，世界 🎉🧑‍🚀👩‍👩‍👧 naïve café — \u2028 end\ufffd. "
lenient = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def deltas(tokenizer, tokens) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.add(token) for token in tokens), detokenizer.flush()]


@lenient
@given(text=st.text(max_size=60))
@example(text="a<|endoftext|>b")
def test_any_text_comes_back_whole_and_in_whole_characters(byte_pairs, text):
    parts = deltas(byte_pairs, byte_pairs.encode(text))
    # What is written like a special token is one, and those are not text.
    assert "".join(parts) == text.replace("<|endoftext|>", "").replace("<|im_end|>", "")
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts), "half a character was sent"


@lenient
@given(data=st.data())
def test_any_tokens_give_what_decoding_all_of_them_gives(byte_pairs, data):
    tokens = data.draw(st.lists(st.integers(0, byte_pairs.vocab_size - 1), max_size=80))
    assert "".join(deltas(byte_pairs, tokens)) == byte_pairs.decode(tokens)


@lenient
@given(text=st.text(alphabet="🎉你é\u0080\U0010ffff", min_size=8), data=st.data())
def test_bytes_that_are_cut_and_mixed_give_what_decoding_all_of_them_gives(byte_pairs, text, data):
    tokens = byte_pairs.encode(text)
    kept = [t for t in tokens if data.draw(st.booleans())]
    assert "".join(deltas(byte_pairs, kept)) == byte_pairs.decode(kept)


def test_text_is_sent_as_soon_as_it_is_whole(byte_pairs):
    tokens = byte_pairs.encode(TEXT)
    assert len(tokens) > len(TEXT), "no character took several tokens: nothing is tested"
    detokenizer, sent = Detokenizer(byte_pairs), ""
    for count, token in enumerate(tokens, start=1):
        sent += detokenizer.add(token)
        assert sent == byte_pairs.decode(tokens[:count]).rstrip("\ufffd")
    assert sent + detokenizer.flush() == TEXT


def test_special_tokens_say_nothing_even_inside_a_character(byte_pairs):
    end = byte_pairs.raw.token_to_id("<|im_end|>")
    tokens = [t for token in byte_pairs.encode("a🎉b") for t in (token, end)]
    assert "".join(deltas(byte_pairs, tokens)) == "a🎉b"


def test_an_unfinished_character_is_told_at_the_end(byte_pairs):
    first = byte_pairs.encode("\U0001f9d1")[0]
    detokenizer = Detokenizer(byte_pairs)
    assert detokenizer.add(first) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


class WordTokenizer:
    """Decodes with a space between words, and so depends on what came before."""

    def decode(self, ids, skip_special_tokens=True) -> str:
        return " ".join(f"w{token}" for token in ids if token)


def test_a_decoder_that_looks_at_the_neighbours_is_followed():
    tokens = [3, 0, 4, 5, 0, 0, 6]
    assert "".join(deltas(WordTokenizer(), tokens)) == WordTokenizer().decode(tokens) == "w3 w4 w5 w6"


@pytest.mark.parametrize("kind", ["words", "invalid", "special", "emoji"])
def test_a_token_costs_the_same_however_long_the_answer(byte_pairs, kind):
    continuation = byte_pairs.encode("\U0001f9d1")[-1]
    tokens = {
        "words": byte_pairs.encode("fox "),
        "invalid": [continuation],
        "special": [byte_pairs.raw.token_to_id("<|im_end|>")],
        "emoji": byte_pairs.encode("🎉"),
    }[kind]
    decoded = []

    class Counting:
        def decode(self, ids, skip_special_tokens=True) -> str:
            decoded[-1] += len(ids)
            return byte_pairs.decode(ids, skip_special_tokens)

    detokenizer = Detokenizer(Counting())
    for index in range(5000):
        decoded.append(0)
        detokenizer.add(tokens[index % len(tokens)])
    assert sum(decoded[-1000:]) < 1.1 * sum(decoded[1000:2000]) + 10
    assert max(decoded) < 200


def stopped(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The definition: read letter by letter, end at the first letter that completes a stop string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


words = st.text(alphabet="ab", min_size=1, max_size=4)


@settings(max_examples=500, deadline=None)
@given(parts=st.lists(st.text(alphabet="ab", max_size=3), max_size=12), stops=st.lists(words, max_size=3))
def test_stop_strings_end_the_text_however_it_is_cut(parts, stops):
    expected, expected_stop = stopped("".join(parts), tuple(stops))
    checker, sent, stop = StopStrings(stops), "", None
    for part in parts:
        text, stop = checker.add(part)
        sent += text
        assert expected.startswith(sent), "text was sent that a stop string takes back"
        if stop is not None:
            break
    if stop is None:
        sent += checker.flush()
    assert (sent, stop) == (expected, expected_stop)


def test_only_what_may_begin_a_stop_string_is_held_back():
    checker = StopStrings(("<end>", "\n\n"))
    assert checker.add("hello <") == ("hello ", None)
    assert checker.add("en") == ("", None)
    assert checker.add("ter\n") == ("<enter", None)
    assert checker.add("x<end") == ("\nx", None)
    assert checker.add("> more") == ("", "<end>")


def test_before_it_is_armed_a_stop_string_is_text_and_its_beginning_counts_later():
    checker = StopStrings(("ab",))
    assert checker.add("ab", armed=False) == ("ab", None)
    assert checker.add("a", armed=False) == ("", None)
    assert checker.add("b") == ("", "ab")
    inner = StopStrings(("xaby", "ab"))
    assert inner.add("xab", armed=False) == ("", None)
    assert inner.add("z") == ("xabz", None)
