"""How a family of models marks thoughts and tool calls in its text, and which family a chat template belongs to."""

from dataclasses import dataclass, replace

from inference_server.parsing.tool_calls import GEMMA_QUOTE, CallRule, gemma_call, json_call


@dataclass(frozen=True, slots=True)
class ThoughtSyntax:
    """Newlines next to the markers belong to the markup. anywhere: a thought may also begin after visible text.

    tokens: the markers as the vocabulary has them.
    """

    opener: str
    closer: str
    tokens: tuple[str, ...]
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """opener: what begins a call; `rule` reads the rest. tokens: the markers as the vocabulary has them.

    form: a call as a grammar enforces it, before and after arguments in JSON, with `NAME` for the function's.
    """

    opener: str
    rule: CallRule
    tokens: tuple[str, ...]
    form: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Dialect:
    """None for what the model does not have. All markers begin with `<`."""

    thought: ThoughtSyntax | None = None
    calls: CallSyntax | None = None

    def opens_thought(self, prompt: str) -> bool:
        """Whether a rendered prompt ends inside a thought, which the answer goes on with."""
        return self.thought is not None and prompt.rstrip().endswith(self.thought.opener.rstrip())

    def tokens(self, tools: bool) -> tuple[str, ...]:
        """The markers to look for in an answer."""
        thought = self.thought.tokens if self.thought else ()
        return thought + (self.calls.tokens if self.calls and tools else ())


GEMMA_THOUGHT = ThoughtSyntax("<|channel>thought\n", "<channel|>", ("<|channel>", "<channel|>"), anywhere=True)
GEMMA_CALLS = CallSyntax(
    "<|tool_call>", gemma_call, ("<|tool_call>", "<tool_call|>", GEMMA_QUOTE), ("<|tool_call>call:NAME", "<tool_call|>")
)
THINK_TAGS = ThoughtSyntax("<think>", "</think>", ("<think>", "</think>"))
JSON_CALLS = CallSyntax(
    "<tool_call>", json_call, ("<tool_call>", "</tool_call>"), ('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>")
)


def with_calls(dialect: Dialect | None) -> Dialect:
    """The dialect, or one that has calls as well: a call that a grammar enforces needs no model that knows how."""
    if dialect is None:
        return Dialect(calls=JSON_CALLS)
    return dialect if dialect.calls else replace(dialect, calls=JSON_CALLS)


def detect_dialect(template: str) -> Dialect | None:
    """The dialect whose markers the source of a chat template spells out; None for one without."""
    thought = GEMMA_THOUGHT if "<|channel>" in template else THINK_TAGS if "</think>" in template else None
    if "<|tool_call>" in template:
        calls = GEMMA_CALLS
    elif "<tool_call>" in template and "<function=" not in template:  # the latter marks a call as XML
        calls = JSON_CALLS
    else:
        calls = None
    return Dialect(thought, calls) if thought or calls else None
