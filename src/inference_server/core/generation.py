"""`GenerationRequest`: what a front end asks of the engine, before templating, tokenising and defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference_server.core.grammar import GrammarSpec
from inference_server.core.request import RequestOrigin


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages to render through the model's chat template: role and content, in the OpenAI form.

    tools: functions that the model may call, in the OpenAI form; with parallel_tool_calls several in one answer. forced_calls: names of
    those that the answer must be a call of; empty where a text will do. strict_calls: names of those whose arguments must fit.
    variables: the client's own for the template.
    reasoning_effort: "none" asks for no thoughts, any other value for thoughts.
    param: the field of the client's request that the messages came in, for errors to name.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    forced_calls: Sequence[str] = ()
    strict_calls: Sequence[str] = ()
    parallel_tool_calls: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    param: str = "messages"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate for one prompt. Sampling fields are those of `SamplingParams`; None takes the model's default.

    prompt: raw text (BOS is added), token ids (taken as they are), or a chat.
    arrival_time: when the server first saw the request, in seconds of the monotonic clock; deadlines and TTFT count from it.
    grammar: what the answer must fit; None for any text. Calls that a chat forces are not in it.
    bad_words: what it must not have, as the vocabulary spells it, alone and behind a space.
    n: choices wanted, each a generation of its own; choice i draws with seed + i.
    max_tokens: 0 only with return_prompt; more than the room in the context is clamped; None takes default_max_tokens, and that takes
    the engine's.
    """

    prompt: str | Sequence[int] | ChatPrompt
    arrival_time: float
    n: int = 1
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: frozenset[int] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    ignore_eos: bool = False
    grammar: GrammarSpec | None = None
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_prompt: bool = False
    origin: RequestOrigin = field(default_factory=RequestOrigin)
    cache_salt: str = ""
    priority: int = 0
