from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ttkern.model.tokenizer import Tokenizer

from live_server import LiveServer, ScriptRunner, StubRunner, build_tokenizer, small_stub


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def scripted(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    """Every answer is SCRIPT, over and over."""
    with LiveServer(ScriptRunner(tokenizer), tokenizer) as server:
        yield server


@pytest.fixture(scope="module")
def slow(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    """Like `scripted`, with time between tokens to do something to a running answer."""
    runner = ScriptRunner(tokenizer, delay_s=0.002)
    with LiveServer(runner, tokenizer) as server:
        yield server


@pytest.fixture(scope="module")
def stub(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    """Every answer is a function of its prompt, and of the seed where it is sampled."""
    with LiveServer(StubRunner(**small_stub(tokenizer)), tokenizer) as server:
        yield server
