"""The server over the real engine and a runner that needs no device; also a script, for tests of the whole process.

`ScriptRunner` answers with a fixed text, so that what must come out is known without the code under test.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import tokenizers
import uvicorn
from tokenizers import decoders, models, pre_tokenizers, trainers

from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.runner_protocol import DecodeRow, PrefillCall, PrefillResult, Sampled, SampleSpec, TokenLogprob
from ttkern.engine.stub_runner import StubRunner
from ttkern.model.chat_template import ChatTemplate
from ttkern.model.tokenizer import Tokenizer
from ttkern.serve.app import create_app
from ttkern.serve.engine_loop import EngineLoop
from ttkern.serve.server import DrainingServer, bind, run

MODEL = "stub-model"
SCRIPT = "Zażółć gęślą jaźń: 你好，世界 🎉🧑‍🚀 naïve café — end. "
CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role not in ["system", "user", "assistant"] %}
{{- raise_exception("unknown role " + message.role) }}
{%- endif %}
{{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- "<|im_start|>assistant\\n" }}{% if no_think %}{{ "<think></think>" }}{% endif %}
{%- endif %}"""
CORPUS = ["the quick brown fox jumps over the lazy dog", "hello world, how are you today?", "once upon a time"]


def build_tokenizer(folder: Path) -> Tokenizer:
    """Byte-level BPE with few merges, so that a character outside ASCII takes several tokens."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(CORPUS, trainer)
    path = folder / "tokenizer.json"
    raw.save(str(path))
    return Tokenizer(path, [raw.token_to_id("<|im_end|>")])


def small_stub(tokenizer: Tokenizer) -> dict[str, int]:
    """Sizes at which eight long answers do not fit into the KV pool at once, so that some are preempted."""
    return {"vocab_size": tokenizer.vocab_size, "max_model_len": 1024, "num_blocks": 96}


class ScriptRunner(StubRunner):
    """Says SCRIPT over and over, whatever the prompt; the likeliest tokens are the next ones of the vocabulary."""

    def __init__(self, tokenizer: Tokenizer, delay_s: float = 0.0) -> None:
        super().__init__(**small_stub(tokenizer))
        self.script = tokenizer.encode(SCRIPT)
        self.delay_s = delay_s
        self.fail = False

    def _say(self, spec: SampleSpec) -> Sampled:
        token = self.script[spec.step % len(self.script)]
        top = tuple(
            TokenLogprob((token + rank) % self.vocab_size, -0.25 * (rank + 1)) for rank in range(spec.logprobs or 0)
        )
        return Sampled(token, None if spec.logprobs is None else -0.25, top)

    def prefill(self, call: PrefillCall) -> PrefillResult:
        result = super().prefill(call)
        return PrefillResult(call.sample and self._say(call.sample), result.prompt_logprobs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled]:
        if self.fail:
            raise RuntimeError("the device went away")
        time.sleep(self.delay_s)
        super().decode(rows)
        return [self._say(row.sample) for row in rows]


class LiveServer:
    """A uvicorn server in a thread. Use as a context manager."""

    def __init__(self, runner: StubRunner, tokenizer: Tokenizer, **options: Any) -> None:
        self.runner = runner
        self.engine = Engine(runner, tokenizer, EngineConfig())
        self.loop = EngineLoop(self.engine)
        self.app = create_app(self.loop, tokenizer, ChatTemplate(CHAT_TEMPLATE, {}), MODEL, **options)
        self.listener = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self._server = DrainingServer(uvicorn.Config(self.app, log_level="warning"), self.loop)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.listener]}, daemon=True)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        self.wait_until(lambda: self._server.started)
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.close()
        self.client.close()
        self._server.should_exit = True
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()

    @staticmethod
    def wait_until(condition: Any, timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.005)

    def assert_idle_and_whole(self) -> None:
        """Nothing runs, and every block and slot is free."""
        self.wait_until(lambda: not self.loop.has_requests and not self.engine.has_work())
        self.wait_until(lambda: self.loop.num_open_groups == 0)
        self.engine.check_integrity()
        assert self.http.get("/health").status_code == 200


def main() -> None:
    """Serve on a free port until a signal, with tokens slow enough to be caught in the middle of a stream."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = build_tokenizer(Path(folder))
        runner = ScriptRunner(tokenizer, delay_s=0.02)
        loop = EngineLoop(Engine(runner, tokenizer, EngineConfig()))
        listener = bind("127.0.0.1", int(sys.argv[1]))
        print(listener.getsockname()[1], flush=True)
        run(create_app(loop, tokenizer, ChatTemplate(CHAT_TEMPLATE, {}), MODEL), listener, log_level="warning")


if __name__ == "__main__":
    main()
