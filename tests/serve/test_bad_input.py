"""What a client gets wrong is a 4xx in OpenAI's shape that names the field; the server stays as it was."""

from __future__ import annotations

import json

import openai
import pytest

from ttkern.model.tokenizer import Tokenizer

from live_server import MODEL, LiveServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def unharmed(scripted: LiveServer):
    yield
    scripted.assert_idle_and_whole()
    answer = scripted.http.post(COMPLETIONS, json={"model": MODEL, "prompt": "hello", "max_tokens": 2})
    assert answer.status_code == 200


def assert_error(answer, status: int, *parts: str, param: str | None = None, code: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]
    for part in parts:
        assert part in error["message"], error["message"]
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code


NO_JSON = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b"not json", "not valid JSON"),
    (b'{"model": "stub-model", "prompt": "a",}', "not valid JSON"),
    (b'{"model": "stub-model", "prompt": "a"} trailing', "not valid JSON"),
    (b'{"model": "stub-model", "prompt": "\xff\xfe"}', "not valid JSON"),
    (b'{"model": "stub-model", "prompt": "\\ud800"}', "not valid JSON"),
    (b'{"model": "stub-model", "prompt": "a\\ud800b"}', "not valid JSON"),
    (b'{"model": "stub-model", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
    (b'{"a":' * 50_000, "recursion"),
    (b"[]", "object"),
    (b"null", "object"),
    (b'"text"', "object"),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(("body", "part"), NO_JSON, ids=[repr(body[:40]) for body, _ in NO_JSON])
def test_a_body_that_is_not_a_json_object_is_refused(scripted: LiveServer, path: str, body: bytes, part: str):
    answer = scripted.http.post(path, content=body, headers={"content-type": "application/json"})
    assert_error(answer, 400, part)


# field, value, what the message says
COMMON = [
    ("model", None, "model"),
    ("model", 5, "string"),
    ("temperature", float("nan"), "finite"),
    ("temperature", float("inf"), "finite"),
    ("temperature", "nan", "number"),
    ("temperature", "0.5", "number"),
    ("temperature", -0.1, "greater than or equal to 0"),
    ("temperature", 2.1, "less than or equal to 2"),
    ("temperature", True, "number"),
    ("temperature", [0.5], "number"),
    ("top_p", 0, "greater than 0"),
    ("top_p", 1.01, "less than or equal to 1"),
    ("top_p", float("nan"), "finite"),
    ("top_k", -2, "greater than or equal to -1"),
    ("top_k", 1.5, "integer"),
    ("n", 0, "greater than or equal to 1"),
    ("n", 129, "less than or equal to 128"),
    ("n", True, "integer"),
    ("n", "2", "integer"),
    ("seed", 2**63, "less than or equal to"),
    ("seed", 10**4000, "integer"),
    ("seed", 0.5, "integer"),
    ("max_tokens", -1, "greater than or equal to"),
    ("max_tokens", 2.0, "integer"),
    ("max_tokens", "16", "integer"),
    ("max_tokens", 10**30, "less than or equal to"),
    ("stop", "", "must not be empty"),
    ("stop", ["a", ""], "must not be empty"),
    ("stop", ["a", "b", "c", "d", "e"], "at most 4"),
    ("stop", 5, "string"),
    ("stop", [5], "string"),
    ("stop_token_ids", 5, "array"),
    ("stop_token_ids", [-1], "greater than or equal to 0"),
    ("stop_token_ids", ["a"], "integer"),
    ("min_tokens", -1, "greater than or equal to 0"),
    ("ignore_eos", "yes", "boolean"),
    ("stream", "true", "boolean"),
    ("stream", 1, "boolean"),
    ("stream_options", {"include_usage": True}, "stream: true"),
    ("user", 5, "string"),
    ("presence_penalty", 0.5, "cannot honour"),
    ("frequency_penalty", -1, "cannot honour"),
    ("repetition_penalty", 1.1, "cannot honour"),
    ("min_p", 0.1, "cannot honour"),
    ("logit_bias", {"5": 1}, "cannot honour"),
    ("skip_special_tokens", False, "cannot honour"),
    ("no_such_field", 1, "unknown field"),
    ("guided_json", {}, "unknown field"),
]
COMPLETION_ONLY = [
    ("prompt", None, "expected a string"),
    ("prompt", 5, "expected a string"),
    ("prompt", [], "expected a string"),
    ("prompt", [[]], "expected a string"),
    ("prompt", [[1], []], "expected a string"),
    ("prompt", ["a", 1], "expected a string"),
    ("prompt", [1, True], "expected a string"),
    ("prompt", [1.0], "expected a string"),
    ("prompt", {"text": "a"}, "expected a string"),
    ("prompt", "", "no tokens"),
    ("prompt", ["a", ""], "no tokens"),
    ("prompt", [-1], "-1"),
    ("prompt", [1, 99999], "99999"),
    ("prompt", [10**30], "10000000"),
    ("prompt", ["a"] * 2000, "2000 prompts"),
    ("suffix", "end", "cannot honour"),
    ("best_of", 3, "value of n"),
    ("logprobs", 6, "less than or equal to 5"),
    ("logprobs", -1, "greater than or equal to 0"),
    ("logprobs", True, "integer"),
    ("echo", "yes", "boolean"),
    ("messages", USER, "unknown field"),
]
CHAT_ONLY = [
    ("messages", [], "at least 1 item"),
    ("messages", None, "array"),
    ("messages", "hello", "array"),
    ("messages", ["hello"], "object"),
    ("messages", [{"role": "user"}], "required"),
    ("messages", [{"content": "a"}], "required"),
    ("messages", [{"role": "robot", "content": "a"}], "'user'"),
    ("messages", [{"role": "tool", "content": "a"}], "'user'"),
    ("messages", [{"role": "developer", "content": "a"}], "unknown role developer"),
    ("messages", [{"role": "user", "content": None}], "expected a string"),
    ("messages", [{"role": "user", "content": 5}], "expected a string"),
    ("messages", [{"role": "user", "content": []}], "expected a string"),
    ("messages", [{"role": "user", "content": ["a"]}], "part 0"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "part 0"),
    ("messages", [{"role": "user", "content": [{"type": {}, "text": "a"}]}], "part 0"),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "image_url"),
    ("messages", [{"role": "user", "content": "a", "name": "bob"}], "cannot honour"),
    ("messages", [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}], "cannot honour"),
    ("messages", [{"role": "user", "content": "a", "color": "red"}], "unknown field"),
    ("max_tokens", 0, "greater than or equal to 1"),
    ("max_completion_tokens", 0, "greater than or equal to 1"),
    ("logprobs", 2, "boolean"),
    ("top_logprobs", 2, "logprobs: true"),
    ("tools", [{"type": "function", "function": {"name": "f"}}], "cannot honour"),
    ("tool_choice", "required", "cannot honour"),
    ("response_format", {"type": "json_object"}, "cannot honour"),
    ("modalities", ["text", "audio"], "cannot honour"),
    ("reasoning_effort", "high", "cannot honour"),
    ("store", True, "cannot honour"),
    ("service_tier", "flex", "cannot honour"),
    ("prediction", {"type": "content", "content": "a"}, "cannot honour"),
    ("metadata", {"a": 1}, "string"),
    ("chat_template_kwargs", {"messages": []}, "must not set"),
    ("chat_template_kwargs", [], "object"),
    ("prompt", "a", "unknown field"),
]
CASES = [
    *((path, field, value, part) for path in (COMPLETIONS, CHAT) for field, value, part in COMMON),
    *((COMPLETIONS, *case) for case in COMPLETION_ONLY),
    *((CHAT, *case) for case in CHAT_ONLY),
]


@pytest.mark.parametrize(
    ("path", "field", "value", "part"), CASES, ids=[f"{p}-{f}-{str(v)[:40]}" for p, f, v, _ in CASES]
)
def test_a_field_that_is_wrong_is_named(scripted: LiveServer, path: str, field: str, value, part: str):
    body = {"model": MODEL, **({"prompt": "hello"} if path == COMPLETIONS else {"messages": USER}), field: value}
    answer = scripted.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert_error(answer, 400, part)
    assert answer.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize(("path", "missing"), [(COMPLETIONS, "prompt"), (CHAT, "messages"), ("/detokenize", "tokens")])
def test_a_missing_field_is_named(scripted: LiveServer, path: str, missing: str):
    assert_error(scripted.http.post(path, json={"model": MODEL}), 400, missing, "required", param=missing)


def test_two_limits_that_differ_are_refused(scripted: LiveServer):
    body = {"model": MODEL, "messages": USER, "max_tokens": 3, "max_completion_tokens": 4}
    assert_error(scripted.http.post(CHAT, json=body), 400, "3 and 4", param="max_tokens")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_unknown_model_is_a_404(scripted: LiveServer, path: str, stream: bool):
    prompt = {"prompt": "hello"} if path == COMPLETIONS else {"messages": USER}
    answer = scripted.http.post(path, json={"model": "other", "stream": stream, **prompt})
    assert_error(answer, 404, "'other'", repr(MODEL), param="model", code="model_not_found")
    assert_error(scripted.http.get("/v1/models/other"), 404, "'other'", code="model_not_found")
    with pytest.raises(openai.NotFoundError):
        scripted.client.models.retrieve("other")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_limit_is_refused_with_both_numbers_before_any_byte(scripted: LiveServer, stream: bool):
    limit = scripted.engine.max_model_len
    for length in (limit + 1, 3 * limit):
        answer = scripted.http.post(
            COMPLETIONS, json={"model": MODEL, "prompt": [7] * length, "max_tokens": 1, "stream": stream}
        )
        assert answer.headers["content-type"] == "application/json"
        assert_error(answer, 400, str(length), str(limit), param="prompt")
    long = [{"role": "user", "content": "z" * 2 * limit}]
    answer = scripted.http.post(CHAT, json={"model": MODEL, "messages": long, "stream": stream})
    assert_error(answer, 400, str(limit))
    with pytest.raises(openai.BadRequestError, match=str(limit)):
        scripted.client.chat.completions.create(model=MODEL, messages=long, stream=stream)


def test_the_longest_prompt_that_fits_is_answered(scripted: LiveServer):
    limit = scripted.engine.max_model_len
    answer = scripted.http.post(COMPLETIONS, json={"model": MODEL, "prompt": [7] * (limit - 1), "max_tokens": 1})
    assert answer.status_code == 200
    assert answer.json()["usage"] == {
        "prompt_tokens": limit - 1,
        "completion_tokens": 1,
        "total_tokens": limit,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_one_bad_prompt_of_a_list_refuses_all(scripted: LiveServer):
    prompts = [[1, 2, 3], [4, 5, 6], [1, 99999]]
    assert_error(scripted.http.post(COMPLETIONS, json={"model": MODEL, "prompt": prompts}), 400, "99999")


def test_a_body_that_is_too_large_is_a_413(scripted: LiveServer):
    body = json.dumps({"model": MODEL, "prompt": "a" * (33 * 1024 * 1024)}).encode()
    headers = {"content-type": "application/json"}
    assert_error(scripted.http.post(COMPLETIONS, content=body, headers=headers), 413, "33554432")
    pieces = (body[start : start + 1_000_000] for start in range(0, len(body), 1_000_000))
    assert_error(scripted.http.post(COMPLETIONS, content=pieces, headers=headers), 413, "33554432")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_a_415(scripted: LiveServer, content_type: str):
    answer = scripted.http.post(CHAT, content=b"{}", headers={"content-type": content_type})
    assert_error(answer, 415, "application/json")


def test_unknown_routes_and_methods_are_answered_in_the_same_shape(scripted: LiveServer):
    assert_error(scripted.http.get("/v1/nothing"), 404, "/v1/nothing")
    assert_error(scripted.http.get("/%ff%0a"), 404)
    answer = scripted.http.get(CHAT)
    assert_error(answer, 405, "GET", CHAT)
    assert answer.headers["allow"] == "POST"
    assert_error(scripted.http.delete("/v1/models"), 405, "DELETE")


def test_token_routes_refuse_what_is_no_token(scripted: LiveServer, tokenizer: Tokenizer):
    post = scripted.http.post
    assert_error(post("/detokenize", json={"tokens": [tokenizer.vocab_size]}), 400, str(tokenizer.vocab_size))
    assert_error(post("/detokenize", json={"tokens": [-1]}), 400, "tokens")
    assert_error(post("/detokenize", json={"tokens": ["a"]}), 400, "tokens")
    assert_error(post("/tokenize", json={"model": MODEL}), 400, "exactly one")
    assert_error(post("/tokenize", json={"prompt": "a", "messages": USER}), 400, "exactly one")
    assert_error(post("/tokenize", json={"model": "other", "prompt": "a"}), 404, "other")
