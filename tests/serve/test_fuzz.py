"""Whatever JSON comes, the answer is a 2xx or a 4xx in OpenAI's shape."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttkern.serve.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, Message, TokenizeRequest

from live_server import MODEL, LiveServer

USER = {"role": "user", "content": "hello"}
ROUTES = {
    "/v1/completions": (CompletionRequest, {"model": MODEL, "prompt": "hello", "max_tokens": 2}),
    "/v1/chat/completions": (ChatRequest, {"model": MODEL, "messages": [USER], "max_tokens": 2}),
    "/tokenize": (TokenizeRequest, {"prompt": "hello"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
}
numbers = st.integers() | st.sampled_from([-1, 0, 1, 2, 5, 20, 2**31, 2**63, 10**400]) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text() | st.sampled_from(["user", "text", "auto", "none", "{", "%s"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
messages = st.lists(
    st.dictionaries(st.sampled_from(sorted(Message.model_fields)), values, max_size=3).map(lambda extra: USER | extra),
    max_size=3,
)


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_no_body_is_a_server_error(scripted: LiveServer, path: str):
    model, body = ROUTES[path]
    names = st.sampled_from(sorted(model.model_fields)) | st.text()
    changes = st.dictionaries(names, values, min_size=1, max_size=3)
    if "messages" in model.model_fields:
        changes = changes | messages.map(lambda value: {"messages": value})

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(changes)
    def check(change: dict) -> None:
        content = json.dumps(body | change, ensure_ascii=True)
        answer = scripted.http.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (content, answer.text)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert error["message"].isprintable()
            assert len(error["message"]) < 1100
            assert set(error) == {"message", "type", "param", "code"}
        elif answer.headers["content-type"].startswith("text/event-stream"):
            assert '"error"' not in answer.text
            assert answer.text.endswith("data: [DONE]\n\n")

    check()
    scripted.assert_idle_and_whole()
