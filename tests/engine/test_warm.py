"""Prefix caching over the emulated device: a warm request's logits are the cold one's, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers.models.qwen3_5", reason="the model under test is made by transformers")

from tests.engine.test_engine_on_device import Letters
from tests.reference_model import SHAPES, StateDictSource, reference_model
from ttkern.engine.config import EngineConfig
from ttkern.engine.engine import Engine
from ttkern.engine.request import Request, SamplingParams
from ttkern.engine.runner import DeviceRunner, RunnerConfig
from ttkern.model.config import ModelConfig
from ttkern.model.decoder import Decoder
from ttkern.model.device_weights import load_decoder_weights
from ttkern.model.work import state_bytes
from ttkern.targets import open_target

CHUNK, BLOCK, TOKENS, VOCAB = 128, 64, 5, 256


class Recorder(DeviceRunner):
    """Keeps the logits that tokens are picked from."""

    seen: list[np.ndarray]

    def _pick(self, spec: Any, logits: Any, tokens: Any) -> Any:
        self.seen.append(self._to_numpy(logits)[0][:1].copy())
        return super()._pick(spec, logits, tokens)

    def launch_decode(self, rows: Any) -> Any:
        collect = super().launch_decode(rows)
        self.seen.append(self._to_numpy(self._decode.outputs[0])[0][[row.slot for row in rows]].copy())
        return collect


class Server:
    """Engines one after the other over one runner, each with nothing cached."""

    def __init__(self, exact: bool, device_places: int, host_places: int) -> None:
        target, model = open_target("emulated", exact=exact), reference_model(SHAPES["base"])
        config = ModelConfig.from_dict(model.config.to_dict())
        self.state_bytes = state_bytes(config)
        limits = RunnerConfig(
            max_model_len=2048,
            chunk_tokens=CHUNK,
            block_size=BLOCK,
            num_blocks=96,
            max_num_seqs=3,
            snapshot_bytes=host_places * self.state_bytes,
            snapshot_device_bytes=device_places * self.state_bytes,
        )
        weights = load_decoder_weights(target, config, StateDictSource(model), positions=2048, weight_dtype="bfloat16")
        self.runner = Recorder(Decoder(target, config, weights, attention_chunk=limits.attention_chunk), limits)
        self.runner.seen = []
        self.runner.start()
        self.target = target
        self.engine = self.fresh()

    def fresh(self, caching: bool = True) -> Engine:
        self.engine = Engine(self.runner, Letters(), EngineConfig(prefix_caching=caching))
        return self.engine

    def ask(self, prompt: list[int], max_tokens: int = TOKENS) -> tuple[int, list[int], np.ndarray]:
        """Cached tokens, the answer, and the logits of each of its tokens."""
        self.runner.seen = []
        self.engine.add_request(Request("r", prompt, SamplingParams(temperature=0, max_tokens=max_tokens)))
        tokens, cached = [], -1
        while self.engine.has_work():
            for output in self.engine.step():
                assert output.error is None
                tokens += output.token_ids
                cached = output.num_cached_tokens
        self.engine.check_integrity()
        logits = np.concatenate([part[:, :VOCAB] for part in self.runner.seen])
        assert len(logits) == len(tokens) or max_tokens == 1
        return cached, tokens, logits


@pytest.fixture(scope="module", params=["exact", "bfloat16"])
def mode(request: pytest.FixtureRequest) -> bool:
    return request.param == "exact"


@pytest.fixture(scope="module", params=[(0, 40), (2, 3)], ids=["host", "device and host"])
def server(mode: bool, request: pytest.FixtureRequest) -> Server:
    return Server(mode, *request.param)


@pytest.fixture(scope="module")
def cold_server(mode: bool) -> Server:
    """Another device, so that what the first has cached stays."""
    return Server(mode, 0, 0)


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


LENGTHS = sorted(
    {at + d for at in (CHUNK, CHUNK + BLOCK, 2 * CHUNK, 5 * CHUNK + BLOCK, 10 * CHUNK) for d in (-1, 0, 1)}
    | {700, 1100}
)


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
def test_every_resume_point(server: Server, length: int) -> None:
    prompt = text(length, length)
    server.fresh(caching=False)
    cached, tokens, cold = server.ask(prompt)
    assert cached == 0
    for chunks in range(1, (length - 1) // CHUNK + 1):
        server.fresh()
        server.ask(prompt[: chunks * CHUNK + 1], max_tokens=1)
        assert server.engine.stats().reuse.hits == 0
        warm_cached, warm_tokens, warm = server.ask(prompt)
        assert (warm_cached, warm_tokens) == (chunks * CHUNK, tokens)
        assert np.array_equal(warm, cold), f"resumed at {chunks} chunks of {length} tokens"
        assert server.engine.stats().reuse.inexact == 0


@pytest.mark.parametrize("fork", [100, 128, 129, 191, 192, 193, 255, 256, 257, 300, 320, 511, 512, 513])
def test_forks_inside_and_at_the_borders_of_blocks_and_chunks(server: Server, fork: int) -> None:
    one, other = text(1, 700), text(2, 700)
    forked = one[:fork] + other[fork:]
    server.fresh(caching=False)
    _, tokens, cold = server.ask(forked)
    server.fresh()
    server.ask(one)
    server.ask([*one[:fork], 7, 8, 9])  # a third way on, which makes the fork known
    cached, warm_tokens, warm = server.ask(forked)
    assert cached == min(fork, 699) // CHUNK * CHUNK
    assert warm_tokens == tokens
    assert np.array_equal(warm, cold)


def test_turns_resume_from_their_own_history(server: Server, cold_server: Server) -> None:
    """Turn after turn; the last chunk border of each turn's prompt is where the next one begins."""
    server.fresh()
    history, before = text(3, 150), 0
    for turn in range(4):
        cached, answer, warm = server.ask(history)
        assert cached == before // CHUNK * CHUNK
        _, tokens, cold = cold_server.ask(history)
        assert answer == tokens
        assert np.array_equal(warm, cold)
        before = len(history)
        history = history + answer + text(turn, 190)


def test_a_state_made_by_decode_is_close_and_reported_apart(server: Server, mode: bool) -> None:
    """An answer that crosses a border leaves a state there: the same sums in another order."""
    server.fresh()
    prompt = text(4, CHUNK - 10)
    _, answer, _ = server.ask(prompt, max_tokens=40)
    longer = prompt + answer + text(5, 60)
    cached, _, warm = server.ask(longer)
    assert cached == CHUNK
    assert server.engine.stats().reuse.inexact == 1
    server.fresh(caching=False)
    _, _, cold = server.ask(longer)
    error = np.sqrt(((warm[0] - cold[0]) ** 2).mean() / (cold[0] ** 2).mean())
    assert 0 < error < (1e-4 if mode else 0.1)


def test_a_state_made_by_decode_gives_way_to_one_made_by_prefill(server: Server) -> None:
    server.fresh()
    prompt = text(6, CHUNK - 10)
    _, answer, _ = server.ask(prompt, max_tokens=40)
    engine, longer = server.engine, prompt + answer + text(7, 60)
    scored = Request("s", longer, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    engine.add_request(scored)  # scores of all of its tokens are asked for, so it is computed whole
    while engine.has_work():
        engine.step()
    cached, _, warm = server.ask(longer)
    assert (cached, engine.stats().reuse.inexact) == (CHUNK, 0)
    server.fresh(caching=False)
    assert np.array_equal(warm, server.ask(longer)[2])


def test_changed_bytes_are_a_miss_and_never_wrong_text(mode: bool) -> None:
    server = Server(mode, 0, 40)
    prompt = text(8, 600)
    server.fresh(caching=False)
    _, tokens, cold = server.ask(prompt)
    engine = server.fresh()
    server.ask(prompt)
    for kept in server.runner._snapshots._host.values():
        kept[0].cell.data.view(-1)[3] += 1.0
    cached, again, warm = server.ask(prompt)
    assert (cached, again) == (0, tokens)
    assert np.array_equal(warm[-TOKENS:], cold)
    assert engine.stats().reuse.corrupt == len(server.runner._snapshots._host) == 4
    cached, again, _ = server.ask(prompt)  # it left a good one behind
    assert (cached, again) == (512, tokens)


def test_requests_that_arrive_together_compute_their_head_once(server: Server) -> None:
    head = text(9, 5 * CHUNK)
    prompts = [head + text(10 + i, 40) for i in range(3)]
    server.fresh(caching=False)
    cold = [server.ask(prompt)[1] for prompt in prompts]
    engine = server.fresh()
    for i, prompt in enumerate(prompts):
        engine.add_request(Request(str(i), prompt, SamplingParams(temperature=0, max_tokens=TOKENS)))
    said: dict[str, list[int]] = {}
    cached = {}
    while engine.has_work():
        for output in engine.step():
            said[output.request_id] = said.get(output.request_id, []) + output.token_ids
            cached[output.request_id] = output.num_cached_tokens
    assert [said[str(i)] for i in range(3)] == cold
    assert [cached[str(i)] for i in range(3)] == [0, 5 * CHUNK, 5 * CHUNK]
    assert engine.stats().num_prefilled_tokens == 5 * CHUNK + 3 * 40


def test_in_steady_state_nothing_is_compiled_or_allocated(server: Server) -> None:
    def turn(seed: int) -> None:
        server.ask(text(11, 300) + text(seed, 200))

    server.fresh()
    for seed in range(12):  # every place has been used once
        turn(seed)
    before = server.target.device.counters()
    for seed in range(12, 24):
        turn(seed)
    spent = server.target.device.counters() - before
    assert (spent.programs_compiled, spent.allocations) == (0, 0)
