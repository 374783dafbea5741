from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import ttkern
from ttkern.errors import TtkernError
from ttkern.serve.greeting import greeting
from ttkern.serve.options import ServeOptions

ROOT = Path(__file__).parents[1]


def run_python(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, *args], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def ttkern_command(*args: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "ttkern.cli", *args)


IMPORT_ALL_WITHOUT_TTNN = """
import importlib, pkgutil, sys
sys.modules["ttnn"] = None  # what an absent package looks like to an import
import ops, ttkern
modules = [m.name for package in (ops, ttkern) for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in modules:
    importlib.import_module(name)
from ttkern import Engine, load_model, open_target
open_target("emulated").close()
print(len(modules))
"""


def test_every_module_imports_and_the_emulated_device_opens_without_ttnn() -> None:
    result = run_python("-c", IMPORT_ALL_WITHOUT_TTNN)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 40


def test_the_command_line_starts_without_importing_torch() -> None:
    result = run_python("-c", "import sys, ttkern.cli; print(sorted({'torch', 'ttnn', 'fastapi'} & set(sys.modules)))")
    assert result.stdout.strip() == "[]", result.stderr


def test_unknown_attributes_are_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Engin'"):
        _ = ttkern.Engin


def test_one_version_everywhere() -> None:
    assert ttkern_command("--version").stdout == f"ttkern {version('ttkern')}\n"
    assert version("ttkern") == ttkern.__version__


def test_help_lists_every_option_that_the_server_has() -> None:
    shown = set(re.findall(r"--[a-z-]+", ttkern_command("serve", "--help").stdout))
    fields = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(ServeOptions)}
    assert shown == fields | {"--help", "--no-enable-prefix-caching"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--port", "70000"], ["--port", "70000", "65535"]),
        (["--max-model-len", "0"], ["--max-model-len", "0", "at least 1"]),
        (["--max-num-seqs", "-1"], ["--max-num-seqs", "-1", "at least 1"]),
        (["--chunk-tokens", "1000"], ["--chunk-tokens", "1000", "power of two"]),
        (["--block-size", "16"], ["--block-size", "16", "at least 32"]),
        (["--chunk-tokens", "32"], ["--chunk-tokens", "32", "--block-size", "64"]),
        (["--kv-cache-tokens", "63"], ["--kv-cache-tokens", "63", "64"]),
        (["--served-model-name", " "], ["--served-model-name", "empty"]),
        (["--target", "toaster"], ["toaster", "emulated"]),
        ([], ["no-such-folder"]),
    ],
)
def test_a_value_that_cannot_be_served_is_one_line_and_exit_code_1(args: list[str], words: list[str]) -> None:
    result = ttkern_command("serve", "--model", "no-such-folder", "--port", "0", *args)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("ttkern: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ([], "--model"),
        (["--model", "x", "--mesh", "1x4"], "--mesh"),
        (["--model", "x", "--port", "many"], "--port"),
        (["--model", "x", "--dtype", "int8"], "--dtype"),
        (["--model", "x", "--kv-cache-dtype", "fp8"], "--kv-cache-dtype"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_names_the_option(args: list[str], word: str) -> None:
    result = ttkern_command("serve", *args)
    assert result.returncode == 2
    assert word in result.stderr
    assert "Traceback" not in result.stderr


def test_options_made_in_python_are_checked_as_well() -> None:
    with pytest.raises(TtkernError, match="--dtype is 'float16'; it must be one of bfloat16, float32"):
        ServeOptions(Path("x"), dtype="float16")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "reached"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("fe::1", "[fe::1]")]
)
def test_the_greeting_names_an_address_that_a_client_can_use(host: str, reached: str) -> None:
    shown = greeting(host, 8123, "it's")
    assert f"http://{reached}:8123/v1/chat/completions" in shown
    (example,) = re.findall(r"^  (from openai.*)", shown, flags=re.DOTALL | re.MULTILINE)
    compile(re.sub(r"^  ", "", example, flags=re.MULTILINE), "greeting", "exec")
    (curl,) = re.findall(r"^  curl (.*)$", shown, flags=re.MULTILINE)
    echoed = subprocess.run(["sh", "-c", f"printf '%s\\n' {curl}"], capture_output=True, text=True, check=True).stdout
    assert '"model": "it\'s"' in echoed


def test_readme_and_contributing_name_only_what_exists() -> None:
    targets = set(re.findall(r"^([a-z.]+):(?!=)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    commands = ("serve", "check", "bench", "compare", "records verify", "recall", "replay", "doctor")
    helps = [ttkern_command(*command.split(), "--help").stdout for command in commands]
    helps.append(run_python("-m", "pytest", "--help").stdout)
    options = set(re.findall(r"--[a-z-]+", "".join(helps)))
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        assert set(re.findall(r"`make ([a-z.]+)", text)) - targets == set(), name
        assert set(re.findall(r"(?<= |`)--[a-z][a-z-]+(?=[ `=])", text)) - options == set(), name
        for path in re.findall(r"`((?:ops|ttkern|tests|traces|profiles|notebooks|\.ci)/[\w./-]*)`", text):
            assert (ROOT / path).exists(), f"{name}: {path}"
    readme = (ROOT / "README.md").read_text()
    assert "make serve" in readme
    assert "make test" in readme


def test_readme_gives_a_reason_for_every_dependency() -> None:
    project = (ROOT / "pyproject.toml").read_text().split("[project.scripts]")[0].split("\ndependencies = ")[1]
    declared = re.findall(r'^    "([A-Za-z0-9-]+)', project, flags=re.MULTILINE)
    assert {"torch", "ttnn", "pytest"} <= set(declared)
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")]
    for name in declared:
        assert any(re.search(rf"\b{re.escape(name)}\b", row.split("|")[1]) for row in rows), name


def test_no_tracked_file_names_a_place_on_a_developers_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    place = re.compile(rb"(?<![\w.~/-])/(?:root|work|home/\w+|Users/\w+)/")
    assert place.search(b"see " + b"/root" + b"/.cache")
    files = [ROOT / name for name in listed.split("\0") if name]
    assert len(files) > 40
    found = [str(file) for file in files if file.is_file() and place.search(file.read_bytes())]
    assert found == []
