"""Log probabilities in the answers, and where each token starts in a text of multi-byte characters."""

from __future__ import annotations

import pytest

from ttkern.engine.runner_protocol import Sampled, TokenLogprob
from ttkern.model.tokenizer import Tokenizer
from ttkern.serve.logprobs import CharacterCounter, TokenTexts, chat_logprobs, completion_logprobs

from live_server import MODEL, SCRIPT, LiveServer


def token_data(string: str) -> bytes:
    """The bytes that a token's string in an answer stands for."""
    if string.startswith("bytes:"):
        return bytes.fromhex(string.removeprefix("bytes:").replace("\\x", ""))
    return string.encode()


def expected_offsets(text: str, tokens: list[bytes]) -> list[int]:
    """The character that holds each token's first byte, found from the text alone."""
    character_at_byte = [index for index, character in enumerate(text) for _ in character.encode()]
    offsets, position = [], 0
    for token in tokens:
        offsets.append(character_at_byte[position])
        position += len(token)
    return offsets


def test_completion_offsets_point_at_the_characters(scripted: LiveServer, tokenizer: Tokenizer):
    length = len(tokenizer.encode(SCRIPT))
    choice = scripted.client.completions.create(model=MODEL, prompt="a", max_tokens=length, logprobs=3).choices[0]
    assert choice.text == SCRIPT
    tokens = [token_data(token) for token in choice.logprobs.tokens]
    assert b"".join(tokens).decode() == SCRIPT
    assert choice.logprobs.text_offset == expected_offsets(SCRIPT, tokens)
    assert len(set(choice.logprobs.text_offset)) < length, "no character took several tokens: nothing was tested"
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) == length
    for token, logprob, top in zip(
        choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):
        assert top[token] == logprob
        assert 3 <= len(top) <= 4


@pytest.mark.parametrize("max_tokens", [0, 1, 9])
def test_echo_scores_the_prompt_but_for_its_first_token(stub: LiveServer, tokenizer: Tokenizer, max_tokens: int):
    prompt = "naïve 世界 fox 🎉"
    options = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "logprobs": 2, "temperature": 0}
    choice = stub.client.completions.create(echo=True, **options).choices[0]
    ids = tokenizer.encode(prompt)
    logprobs = choice.logprobs
    assert choice.text.startswith(prompt)
    assert len(logprobs.tokens) == len(ids) + max_tokens
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert all(isinstance(logprob, float) and logprob <= 0 for logprob in logprobs.token_logprobs[1:])
    assert all(token in top for token, top in zip(logprobs.tokens[1:], logprobs.top_logprobs[1:], strict=True))
    tokens = [token_data(token) for token in logprobs.tokens[: len(ids)]]
    assert b"".join(tokens).decode() == prompt
    assert logprobs.text_offset[: len(ids)] == expected_offsets(prompt, tokens)
    if max_tokens:
        assert logprobs.text_offset[len(ids)] == len(prompt)
        alone = stub.client.completions.create(**options).choices[0]
        assert choice.text == prompt + alone.text
        assert logprobs.tokens[len(ids) :] == alone.logprobs.tokens
        assert [offset - len(prompt) for offset in logprobs.text_offset[len(ids) :]] == alone.logprobs.text_offset
    else:
        assert choice.text == prompt
        assert choice.finish_reason == "length"


def test_echo_without_logprobs_is_the_prompt_and_the_answer(scripted: LiveServer, tokenizer: Tokenizer):
    options = {"model": MODEL, "max_tokens": len(tokenizer.encode(SCRIPT)), "echo": True}
    for prompt in ("hello 世界", tokenizer.encode("hello 世界")):
        choice = scripted.client.completions.create(prompt=prompt, **options).choices[0]
        assert choice.text == "hello 世界" + SCRIPT
        assert choice.logprobs is None


def test_streamed_logprobs_are_the_whole_ones(scripted: LiveServer):
    options = {"model": MODEL, "prompt": "hello 世界", "max_tokens": 60, "logprobs": 2, "echo": True, "stop": "end"}
    whole = scripted.client.completions.create(**options).choices[0]
    streamed: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    text = ""
    for chunk in scripted.client.completions.create(stream=True, **options):
        text += chunk.choices[0].text
        if chunk.choices[0].logprobs:
            for name, values in streamed.items():
                values.extend(getattr(chunk.choices[0].logprobs, name))
    assert text == whole.text
    assert streamed == {name: getattr(whole.logprobs, name) for name in streamed}


def test_chat_logprobs_carry_the_bytes_of_each_token(scripted: LiveServer, tokenizer: Tokenizer):
    length = len(tokenizer.encode(SCRIPT))
    options = {"messages": [{"role": "user", "content": "a"}], "max_tokens": length, "logprobs": True}
    options |= {"model": MODEL, "top_logprobs": 4}
    content = scripted.client.chat.completions.create(**options).choices[0].logprobs.content
    assert len(content) == length
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == SCRIPT
    for entry in content:
        assert token_data(entry.token) == bytes(entry.bytes)
        assert len(entry.top_logprobs) == 4
        assert entry.top_logprobs[0].logprob == entry.logprob
    streamed = []
    for chunk in scripted.client.chat.completions.create(stream=True, **options):
        if chunk.choices[0].logprobs:
            streamed.extend(chunk.choices[0].logprobs.content)
    assert [e.model_dump() for e in streamed] == [e.model_dump() for e in content]


def test_logprobs_without_alternatives(scripted: LiveServer):
    chat = scripted.client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "a"}], max_tokens=3, logprobs=True
    )
    assert [entry.top_logprobs for entry in chat.choices[0].logprobs.content] == [[], [], []]
    plain = scripted.client.completions.create(model=MODEL, prompt="a", max_tokens=3, logprobs=0).choices[0].logprobs
    assert [list(top) for top in plain.top_logprobs] == [[token] for token in plain.tokens]


def test_minus_infinity_becomes_a_number_that_json_has(tokenizer: Tokenizer):
    texts = TokenTexts(tokenizer)
    sampled = [Sampled(5, float("-inf"), (TokenLogprob(6, -1.0), TokenLogprob(7, float("-inf"))))]
    assert completion_logprobs(texts, sampled, [0])["token_logprobs"] == [-9999.0]
    entry = chat_logprobs(texts, sampled)["content"][0]
    assert (entry["logprob"], entry["top_logprobs"][1]["logprob"]) == (-9999.0, -9999.0)


def test_two_halves_of_a_character_have_different_strings(tokenizer: Tokenizer):
    texts = TokenTexts(tokenizer)
    ids = tokenizer.encode("世")
    assert len(ids) == 3
    assert [texts.string(token) for token in ids] == ["bytes:\\xe4", "bytes:\\xb8", "bytes:\\x96"]


def test_special_tokens_have_a_name_and_no_text(tokenizer: Tokenizer):
    texts = TokenTexts(tokenizer)
    (token,) = tokenizer.encode("<|im_end|>")
    assert texts.string(token) == "<|im_end|>"
    assert texts.output_bytes(token) == b""


def test_an_id_that_no_token_has_is_still_told_apart(tokenizer: Tokenizer):
    texts = TokenTexts(tokenizer)
    assert texts.string(tokenizer.vocab_size + 3) == f"token_id:{tokenizer.vocab_size + 3}"
    assert texts.output_bytes(tokenizer.vocab_size + 3) == b""


def test_broken_bytes_count_as_the_characters_that_stand_for_them():
    counter = CharacterCounter()
    pieces = [b"a", b"\xe4", b"b", b"\xff", b"\xe4\xb8", b"\x96", b"c"]
    starts = [counter.advance(piece) for piece in pieces]
    text = b"".join(pieces).decode(errors="replace")
    assert text == "a\ufffdb\ufffd世c"
    assert starts == [0, 1, 1, 3, 4, 4, 5]
