"""The `openai` package, which others wrote, against a live server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from ttkern.model.tokenizer import Tokenizer

from live_server import MODEL, SCRIPT, LiveServer

HELLO = [{"role": "user", "content": "hello world"}]


def stream_chat(server: LiveServer, **options) -> tuple[str, list]:
    chunks = list(server.client.chat.completions.create(model=MODEL, stream=True, **options))
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks


def stream_completion(server: LiveServer, **options) -> tuple[str, list]:
    chunks = list(server.client.completions.create(model=MODEL, stream=True, **options))
    return "".join(c.choices[0].text for c in chunks if c.choices), chunks


def test_chat_says_what_the_model_says(scripted: LiveServer, tokenizer: Tokenizer):
    length = len(tokenizer.encode(SCRIPT))
    answer = scripted.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=length)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == SCRIPT
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == length
    prompt = tokenizer.encode("<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n")
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.total_tokens == len(prompt) + length
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 30, 61])
@pytest.mark.parametrize("stop", [None, "世界", ["nowhere", "ść: ", "🧑‍🚀 n"], "gęś"])
def test_streamed_text_is_the_whole_text(scripted: LiveServer, stop, max_tokens: int):
    options = {"messages": HELLO, "max_tokens": max_tokens, "stop": stop}
    whole = scripted.client.chat.completions.create(model=MODEL, **options).choices[0]
    text, chunks = stream_chat(scripted, **options)
    assert text.encode() == whole.message.content.encode()
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    options = {"prompt": "hello", "max_tokens": max_tokens, "stop": stop}
    whole = scripted.client.completions.create(model=MODEL, **options).choices[0]
    text, chunks = stream_completion(scripted, **options)
    assert text.encode() == whole.text.encode()
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("世界", SCRIPT.partition("世界")[0]), (["🧑‍🚀 n", "nowhere"], SCRIPT.partition("🧑‍🚀 n")[0]), ("Z", "")],
)
def test_stop_string_across_tokens_ends_the_text_before_it(scripted: LiveServer, stop, expected: str):
    options = {"messages": HELLO, "max_tokens": 200, "stop": stop}
    whole = scripted.client.chat.completions.create(model=MODEL, **options).choices[0]
    assert whole.message.content == expected
    assert whole.finish_reason == "stop"
    assert stream_chat(scripted, **options)[0] == expected


def test_chat_stream_starts_with_the_role_and_ends_with_usage(scripted: LiveServer):
    options = {"messages": HELLO, "max_tokens": 9, "stream_options": {"include_usage": True}}
    _, chunks = stream_chat(scripted, **options)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 9
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_stream_is_server_sent_events_with_a_done_at_the_end(scripted: LiveServer):
    body = {"model": MODEL, "prompt": "a", "max_tokens": 5, "stream": True}
    with scripted.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        raw = answer.read().decode()
    events = raw.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"


def test_no_chunk_is_half_a_character(slow: LiveServer):
    _, chunks = stream_completion(slow, prompt="x", max_tokens=150)
    texts = [c.choices[0].text for c in chunks]
    assert not any("\ufffd" in text for text in texts[:-2])
    assert len(texts) > 20, "the text did not arrive piece by piece"


def test_eight_clients_at_a_time_get_what_each_gets_alone(stub: LiveServer):
    prompts = [f"client number {number} asks" for number in range(8)]

    def ask(prompt: str, stream: bool, chat: bool) -> str:
        messages = [{"role": "user", "content": prompt}]
        options = {"max_tokens": 40, "temperature": 0}
        if chat and stream:
            return stream_chat(stub, messages=messages, **options)[0]
        if chat:
            answer = stub.client.chat.completions.create(model=MODEL, messages=messages, **options)
            return answer.choices[0].message.content
        if stream:
            return stream_completion(stub, prompt=prompt, **options)[0]
        return stub.client.completions.create(model=MODEL, prompt=prompt, **options).choices[0].text

    for chat in (False, True):
        alone = [ask(prompt, False, chat) for prompt in prompts]
        assert len(set(alone)) == 8
        for stream in (False, True):
            with ThreadPoolExecutor(8) as pool:
                together = list(pool.map(lambda prompt: ask(prompt, stream, chat), prompts))  # noqa: B023
            assert together == alone
    stub.assert_idle_and_whole()


def test_completions_take_text_texts_token_ids_and_their_lists(stub: LiveServer, tokenizer: Tokenizer):
    texts = ["hello world", "the lazy dog"]
    ids = [tokenizer.encode(text) for text in texts]

    def ask(prompt) -> list[str]:
        answer = stub.client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    both = [ask(text)[0] for text in texts]
    assert both[0] != both[1]
    assert ask(texts) == both
    assert ask(ids) == both
    assert ask(ids[0]) == both[:1]


def test_n_choices_differ_and_a_seed_repeats_them(stub: LiveServer):
    options = {"model": MODEL, "messages": HELLO, "max_tokens": 20, "n": 3}
    first = stub.client.chat.completions.create(seed=5, **options)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    again = stub.client.chat.completions.create(seed=5, **options)
    assert [choice.message.content for choice in again.choices] == texts
    streamed = ["", "", ""]
    for chunk in stub.client.chat.completions.create(seed=5, stream=True, **options):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_usage_counts_a_prompt_once_however_many_choices(scripted: LiveServer, tokenizer: Tokenizer):
    prompts = ["hello", "the lazy dog"]
    usage = scripted.client.completions.create(model=MODEL, prompt=prompts, n=3, max_tokens=4).usage
    assert usage.prompt_tokens == sum(len(tokenizer.encode(prompt)) for prompt in prompts)
    assert usage.completion_tokens == 2 * 3 * 4


def test_chat_content_parts_are_the_joined_text(stub: LiveServer):
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]

    def ask(content) -> str:
        messages = [{"role": "user", "content": content}]
        answer = stub.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=16, temperature=0)
        return answer.choices[0].message.content

    assert ask(parts) == ask("hello world") != ask("hello  world")


def test_an_assistant_message_can_be_sent_back(scripted: LiveServer):
    first = scripted.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4)
    history = [*HELLO, first.choices[0].message, {"role": "user", "content": "and then?"}]
    assert scripted.client.chat.completions.create(model=MODEL, messages=history, max_tokens=4).choices


def test_neutral_values_of_what_cannot_be_honoured_pass(scripted: LiveServer):
    answer = scripted.client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_completion_tokens=3,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        user="someone",
        metadata={"run": "1"},
        store=False,
        extra_body={"top_k": -1, "min_p": 0, "repetition_penalty": 1.0, "ignore_eos": True, "min_tokens": 2},
    )
    assert answer.usage.completion_tokens == 3


def test_template_arguments_reach_the_template(scripted: LiveServer):
    def prompt_tokens(extra: dict) -> int:
        answer = scripted.client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=1, extra_body={"chat_template_kwargs": extra}
        )
        return answer.usage.prompt_tokens

    assert prompt_tokens({"no_think": True}) > prompt_tokens({})


def test_stop_token_ids_end_the_answer(scripted: LiveServer, tokenizer: Tokenizer):
    script = tokenizer.encode(SCRIPT)
    answer = scripted.client.completions.create(
        model=MODEL, prompt="a", max_tokens=50, extra_body={"stop_token_ids": [script[5]]}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == script.index(script[5]) + 1


def test_an_early_end_of_reading_is_an_end_of_generation(scripted: LiveServer):
    stream = scripted.client.completions.create(model=MODEL, prompt="a", max_tokens=900, stream=True)
    assert len(list(islice(stream, 3))) == 3
    stream.close()
    scripted.assert_idle_and_whole()


def test_models_are_listed(scripted: LiveServer):
    assert [model.id for model in scripted.client.models.list()] == [MODEL]
    assert scripted.client.models.retrieve(MODEL).id == MODEL
