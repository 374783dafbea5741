"""The README's examples, run as they stand against the demo model's server (only the port differs)."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def example(language: str, address: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    assert "http://127.0.0.1:8000" in block
    return block.replace("http://127.0.0.1:8000", address)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server started as `make serve` does, which afterwards ends well."""
    demo = tmp_path_factory.mktemp("checkpoint") / "demo"
    log = demo.with_name("log")
    subprocess.run([sys.executable, "-m", "ttkern.model.checkpoint", str(demo)], cwd=ROOT, check=True, timeout=120)
    command = [sys.executable, "-m", "ttkern.cli", "serve", "--model", str(demo), "--port", "0"]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            ready = next((line for line in server.stdout if line.startswith("ready: ")), None)
            assert ready is not None, log.read_text()
            found = re.fullmatch(r"ready: demo on (http://127\.0\.0\.1:\d+)/v1\n", ready)
            assert found is not None, ready
            yield found[1]
            server.send_signal(signal.SIGTERM)
            server.stdout.read()
            assert server.wait(timeout=60) == 0, log.read_text()
        finally:
            server.kill()


def test_the_openai_example_prints_an_answer(address: str) -> None:
    code = example("python", address)
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
        for _ in range(2)
    )
    assert first.strip()
    assert first == second, "at temperature 0 the README promises the same answer"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_curl_example_streams_an_answer(address: str) -> None:
    result = subprocess.run(
        ["sh", "-c", example("sh", address)], capture_output=True, text=True, timeout=120, check=True
    )
    events = result.stdout.strip().split("\n\n")
    assert len(events) > 2
    assert events[-1] == "data: [DONE]"
