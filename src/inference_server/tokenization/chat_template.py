"""Chat messages to one prompt, by the model's own Jinja template in a sandbox; prompts are never concatenated by hand.

A model without a template is a base model: it gets the plain dialogue in `templates/`, whose stop string ends the turn.
The environment follows transformers' `render_jinja_template`, so that published templates render the same.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, Self

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.errors import ChatTemplateError

_PLAIN_TEMPLATE = "plain_dialogue.jinja"
_PLAIN_STOPS = ("\nUser:",)
_OWN_VARIABLES = frozenset({"self", "messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
_PROBES = ("Apple", "7 days")  # share no first character, so no first token


class ChatTemplate:
    """A compiled template.

    `stop_strings` are those the template itself calls for, beside the model's end-of-turn ids. `strip_leading_space` says that an
    answer starts with the space between the speaker's name and the text. `variables` are the names that the template reads.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], stop_strings: tuple[str, ...] = (), strip_leading_space: bool = False
    ) -> None:
        """Raises `ChatTemplateError` if `source` is not valid Jinja."""
        self.source = source
        self.stop_strings = stop_strings
        self.strip_leading_space = strip_leading_space
        self._special_tokens = special_tokens
        self._template, self.variables = _compile(source)
        self.reserved = _OWN_VARIABLES.union(special_tokens)
        self._embeds_results = "tool_responses" in source and "tool_call_id" not in source

    @classmethod
    def plain(cls, tokenizer: TokenizerLike) -> Self:
        """The dialogue for models that bring no template."""
        source = (files("inference_server.tokenization") / "templates" / _PLAIN_TEMPLATE).read_text(encoding="utf-8")
        return cls(source, tokenizer.special_tokens, _PLAIN_STOPS, strip_leading_space=True)

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: TokenizerLike, override: str | Path | None = None) -> Self:
        """The template of the model in `folder`: `override` (a path, or Jinja text), else its own, else the plain dialogue.

        Raises `ChatTemplateError` if it cannot be read.
        """
        source = _override_source(override) if override else _model_source(folder)
        return cls.plain(tokenizer) if source is None else cls(source, tokenizer.special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation in OpenAI's message form; `kwargs` are further variables of the template, none of `reserved`.

        Raises `ChatTemplateError` for content other than text, or a conversation that the template refuses.
        """
        plain = [_plain_message(message) for message in messages]
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": _embed_results(plain) if self._embeds_results else plain,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except Exception as error:  # a template is a program that we did not write
            raise ChatTemplateError(f"the chat template does not accept these messages: {error}") from error

    def switches(self, reasoning_effort: str | None) -> dict[str, Any]:
        """The variables by which templates turn thoughts on or off, for "none" or any other effort; nothing for None."""
        return {} if reasoning_effort is None else {"enable_thinking": reasoning_effort != "none", "reasoning_effort": reasoning_effort}

    def template_prefix_len(self, tokenizer: TokenizerLike) -> int:
        """How many leading tokens every prompt of one user message shares, whatever the message."""
        first, second = (tokenizer.encode(self.render([{"role": "user", "content": probe}])) for probe in _PROBES)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _override_source(override: str | Path) -> str:
    if isinstance(override, str) and "{" in override:
        return override
    return _read(Path(override).expanduser())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"{path}: the chat template cannot be read ({error})") from error


def _model_source(folder: Path) -> str | None:
    """chat_template.jinja, else the entry of tokenizer_config.json: one template, or several by name."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return _read(own)
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return None
    try:
        entry = json.loads(_read(config)).get("chat_template")
        source = {named["name"]: named["template"] for named in entry}.get("default") if isinstance(entry, list) else entry
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ChatTemplateError(f"{config}: the chat template cannot be read ({error!r})") from error
    if not (source is None or isinstance(source, str)):
        raise ChatTemplateError(f"{config}: the chat template is no text")
    return source


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Text parts joined, no content as empty text, `developer` by its older name, and the arguments of tool calls as objects:
    the form that templates know."""
    role = message.get("role")
    plain = {**message, "role": "system" if role == "developer" else role, "content": _text(message.get("content"))}
    if message.get("tool_calls"):
        plain["tool_calls"] = [{**call, "function": _plain_function(call["function"])} for call in message["tool_calls"]]
    return plain


def _plain_function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise ChatTemplateError(f"the arguments of a call of {function.get('name')!r} are not a JSON object")
    return {**function, "arguments": arguments}


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ChatTemplateError(f"a content part of type {part.get('type')!r} is not supported, only text is")
        texts.append(part["text"])
    return "".join(texts)


class _GenerationBlock(Extension):
    """`{% generation %}`, which marks the assistant's tokens for training: its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _embed_results(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tools as part of the message that called them: the form of Gemma 4's first templates, which know no role for them."""
    embedded: list[dict[str, Any]] = []
    for message in messages:
        calls = embedded[-1].get("tool_calls") if embedded and message["role"] == "tool" else None
        if calls:
            name = next((call["function"]["name"] for call in calls if call.get("id") == message.get("tool_call_id")), "unknown")
            embedded[-1].setdefault("tool_responses", []).append({"name": name, "response": message["content"]})
        else:
            embedded.append(message)
    return embedded


def _compile(source: str) -> tuple[Template, frozenset[str]]:
    """The template, and the names of the variables that it reads."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source), frozenset(meta.find_undeclared_variables(environment.parse(source)))
    except TemplateError as error:
        raise ChatTemplateError(f"the chat template is not valid Jinja: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, this does not escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
