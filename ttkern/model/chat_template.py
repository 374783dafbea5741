"""A checkpoint's chat template: messages to prompt text, in a sandbox, as transformers' `apply_chat_template` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ttkern.errors import TtkernError
from ttkern.model.json_file import read_json_object
from ttkern.model.tokenizer import read_special_tokens

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A Jinja template that came with a checkpoint, so it is code of strangers: it runs sandboxed.

    source          the template
    special_tokens  bos_token, eos_token and the like, as text; the template may write them
    tool_source     another template for requests that bring tools, where the checkpoint has one

    Raises TtkernError for a template that is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._template = _compile(source)
        self._tool_template = self._template if tool_source is None else _compile(tool_source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,  # so that kwargs may hold any name
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for `messages`, each with a role and what else the template reads.

        add_generation_prompt: end where the assistant's answer begins; kwargs: further names for the template, such as
        enable_thinking; they go before a special token of the same name.

        Raises TtkernError with the template's own words where it refuses, else with what went wrong in it.
        """
        template = self._template if tools is None else self._tool_template
        names = {"documents": None, **self._special_tokens, **kwargs}
        names["messages"] = [_with_reasoning_names(message) for message in messages]
        names["tools"] = tools
        names["add_generation_prompt"] = add_generation_prompt
        try:
            return template.render(names)
        except _RefusedError as error:
            raise TtkernError(_one_line(error)) from None
        except Exception as error:  # whatever a template of strangers does wrong with what it was given
            raise TtkernError(f"chat template: {type(error).__name__}: {_one_line(error)}") from None


def load_chat_template(folder: str | Path) -> ChatTemplate | None:
    """The chat template of a checkpoint folder: `chat_template.jinja`, else `chat_template` of tokenizer_config.json.

    The latter is one template or a list of named ones, of which "default" and "tool_use" count. None where there is no
    template. Raises TtkernError naming the file.
    """
    folder = Path(folder)
    config_path, path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    templates: dict[str, str] = {}
    if path.exists():
        try:
            templates["default"] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TtkernError(f"{path}: cannot be read: {_one_line(error)}") from None
    elif config_path.exists():
        path = config_path
        templates = _named_templates(path, read_json_object(path, "the chat template").get("chat_template"))
    if not templates:
        return None
    if "default" not in templates:
        raise TtkernError(f"{path}: chat_template has {', '.join(templates)} but none named 'default'")
    try:
        return ChatTemplate(templates["default"], read_special_tokens(config_path), templates.get("tool_use"))
    except TtkernError as error:
        raise TtkernError(f"{path}: {error}") from None


def _named_templates(path: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    entries = [{"name": "default", "template": value}] if isinstance(value, str) else value
    try:
        templates = {entry["name"]: entry["template"] for entry in entries}
    except (TypeError, KeyError):
        templates = {"": None}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise TtkernError(f"{path}: chat_template must be a template or a list of objects with a name and a template")
    return templates


class _RefusedError(jinja2.TemplateError):
    """The template called raise_exception."""


class _GenerationBlock(Extension):
    """{% generation %} .. {% endgeneration %}: marks the assistant's words for training; here just its content."""

    tags = {"generation"}  # noqa: RUF012 (the name and kind that jinja2 wants)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TtkernError(f"chat template: line {error.lineno}: {_one_line(error.message)}") from None
    except (jinja2.TemplateError, RecursionError) as error:
        raise TtkernError(f"chat template: {_one_line(error)}") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML's characters, which a model has never seen in JSON.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise _RefusedError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _with_reasoning_names(message: Mapping[str, Any]) -> dict[str, Any]:
    """Clients and templates differ in the name for an earlier answer's reasoning; transformers fills in two of them."""
    reasoning = next((message[name] for name in _REASONING_NAMES if message.get(name) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
