"""Hop 2: what a front end asks for, to a request that the scheduler can run. Templating, tokenising, limits and defaults.

Pure and safe to run in a worker thread. Ranges of sampling values are the API's to check; here is only what depends on the model.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

from inference_server.core.errors import InvalidRequestError, PromptTooLongError, UnsupportedParameterError
from inference_server.core.generation import ChatPrompt, GenerationRequest
from inference_server.core.grammar import CompiledGrammar
from inference_server.core.options import EngineOptions
from inference_server.core.request import AnswerMode, ScheduledRequest
from inference_server.core.request_history import RequestHistory
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.loaded_model import LoadedModel
from inference_server.grammar.after_thought import AnswerAfterThought
from inference_server.grammar.bad_words import BadWords
from inference_server.tokenization.errors import ChatTemplateError

T = TypeVar("T")

Prompt = str | Sequence[int] | ChatPrompt

_SEED_BITS = 63
_MARKUP = 32  # characters that a template adds to a message, roughly


class InputProcessor:
    """Requests of one loaded model."""

    def __init__(self, model: LoadedModel, options: EngineOptions) -> None:
        self._model = model
        self._options = options

    def process(self, request: GenerationRequest, grammar: CompiledGrammar | None = None) -> ScheduledRequest:
        """The request under a fresh internal id, its answer to fit `grammar`.

        Raises PromptTooLongError, or InvalidRequestError for a prompt that cannot be used.
        """
        answer = None
        if isinstance(request.prompt, ChatPrompt):
            text = self._render(request.prompt)
            answer = self._answer_mode(request.prompt, text)
            grammar = grammar and self._after_thought(grammar, answer, request.prompt.param)
            token_ids = self._token_ids(text, request.prompt.param)
        else:
            token_ids = self._token_ids(request.prompt, "prompt")
        room = self._model.max_model_len - len(token_ids)
        if room < 1:
            limit = f"the model's context is {self._model.max_model_len} tokens, one of them for the answer"
            raise PromptTooLongError(f"the prompt has {len(token_ids)} tokens; {limit}", param=_param(request.prompt))
        return ScheduledRequest(
            request_id=uuid4().hex,
            token_ids=token_ids,
            sampling=self._sampling(request, room),
            arrival_time=request.arrival_time,
            origin=request.origin,
            cache_salt=request.cache_salt,
            priority=request.priority,
            strip_leading_space=answer is not None and self._model.template.strip_leading_space,
            answer=answer,
            grammar=grammar or self._forbidding(request.bad_words),
        )

    def choices(self, request: GenerationRequest, grammar: CompiledGrammar | None = None) -> list[ScheduledRequest]:
        """As `process`, a request for each choice; the first is to be the parent of the others."""
        first = self.process(request, grammar)
        seeds = [(first.sampling.seed + index) % (1 << _SEED_BITS) for index in range(request.n)]
        return [first] + [
            replace(
                first,
                request_id=uuid4().hex,
                token_ids=list(first.token_ids),
                sampling=replace(first.sampling, seed=seed),
                block_tables=[],
                history=RequestHistory(),
            )
            for seed in seeds[1:]
        ]

    def encode(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, at least one. Raises InvalidRequestError."""
        text = self._render(prompt) if isinstance(prompt, ChatPrompt) else prompt
        return self._token_ids(text, _param(prompt), add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out. Raises InvalidRequestError."""
        return self._model.tokenizer.decode(self._checked(token_ids, "tokens")) if token_ids else ""

    def _token_ids(self, prompt: str | Sequence[int], param: str, add_special_tokens: bool = True) -> list[int]:
        if not isinstance(prompt, str):
            return self._checked(prompt)
        if not prompt:
            raise InvalidRequestError("the prompt is empty", param=param)
        if not prompt.isascii():
            try:
                prompt.encode()
            except UnicodeEncodeError:
                raise InvalidRequestError("the prompt is not valid Unicode: it has a lone surrogate", param=param) from None
        return self._model.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)

    def _render(self, prompt: ChatPrompt) -> str:
        if not prompt.messages:
            raise InvalidRequestError("there are no messages", param=prompt.param)
        dialect = self._model.dialect
        tools = prompt.tools
        if tools and (dialect is None or dialect.calls is None):
            if prompt.forced_calls:  # a grammar enforces them, though the model is not told what they are for
                tools = ()
            else:
                raise UnsupportedParameterError(
                    "the parameter 'tools' is not supported: this model's chat template has no tool calls", param="tools"
                )
        variables = self._variables(prompt)
        try:
            return self._model.template.render(prompt.messages, add_generation_prompt=True, tools=tools, **variables)
        except ChatTemplateError as error:
            raise InvalidRequestError(str(error), param=prompt.param) from error

    def _variables(self, prompt: ChatPrompt) -> dict[str, Any]:
        """The client's variables of the template, and before them what `reasoning_effort` says to the template's thinking switch."""
        template = self._model.template
        if taken := template.reserved.intersection(prompt.variables):
            raise InvalidRequestError(f"the template variable '{min(taken)}' is the server's to set", param="chat_template_kwargs")
        switches = template.switches(prompt.reasoning_effort)
        if switches and template.variables.isdisjoint(switches):
            raise UnsupportedParameterError(
                "the parameter 'reasoning_effort' is not supported: this model's chat template has no switch", param="reasoning_effort"
            )
        return {**switches, **prompt.variables}

    def _answer_mode(self, prompt: ChatPrompt, rendered: str) -> AnswerMode:
        dialect = self._model.dialect
        in_thought = dialect is not None and dialect.opens_thought(rendered)
        return AnswerMode(in_thought, tools=bool(prompt.tools), parallel=prompt.parallel_tool_calls)

    def _after_thought(self, grammar: CompiledGrammar, answer: AnswerMode, param: str) -> CompiledGrammar:
        """In a chat of a model that thinks, the grammar waits for the end of the thought."""
        thought = self._model.dialect and self._model.dialect.thought
        begin, end = (self._model.tokenizer.encode(text, add_special_tokens=False) for text in thought.tokens) if thought else ([], [])
        if len(begin) == len(end) == 1:
            return AnswerAfterThought(grammar, begin[0], end[0], answer.in_thought)
        if answer.in_thought:
            raise UnsupportedParameterError("this model's thoughts have no end that a grammar could wait for", param=param)
        return grammar

    def _forbidding(self, words: Sequence[str]) -> CompiledGrammar | None:
        """A grammar that forbids `words`, spelled as by vLLM: each alone, and behind a space if that has as many tokens, another first."""
        spellings = []
        for word in words:
            alone, behind = (self._model.tokenizer.encode(space + word.lstrip(), add_special_tokens=False) for space in ("", " "))
            if not alone:
                raise InvalidRequestError("a bad word must not be blank", param="bad_words")
            spellings.append(alone)
            if len(behind) == len(alone) and behind[0] != alone[0]:
                spellings.append(behind)
        return BadWords(spellings, self._model.spec.vocab_size) if spellings else None

    def _checked(self, token_ids: Sequence[int], param: str = "prompt") -> list[int]:
        if not token_ids:
            raise InvalidRequestError("the prompt is empty", param=param)
        size = self._model.spec.vocab_size
        if min(token_ids) < 0 or max(token_ids) >= size:
            raise InvalidRequestError(f"token ids must lie between 0 and {size - 1}", param=param)
        return list(token_ids)

    def _sampling(self, request: GenerationRequest, room: int) -> SamplingParams:
        """A stop string that the template calls for stands for an end-of-text token, so `ignore_eos` drops both."""
        defaults = self._model.defaults
        wanted = _first(request.max_tokens, request.default_max_tokens, self._options.default_max_tokens)
        if wanted < (0 if request.return_prompt else 1):
            raise InvalidRequestError("at least one token must be asked for", param="max_tokens")
        if "" in request.stop:
            raise InvalidRequestError("a stop string must not be empty", param="stop")
        if request.min_tokens > wanted:
            raise InvalidRequestError(f"min_tokens is above the {wanted} tokens that may be generated", param="min_tokens")
        if request.prompt_logprobs is not None and not self._model.spec.supports_prompt_logprobs:
            raise UnsupportedParameterError("this backend has no log-probabilities of a prompt", param="echo")
        self._check_tokens(request)
        end_of_text = () if request.ignore_eos else self._model.tokenizer.eos_token_ids
        template_stops = self._model.template.stop_strings if isinstance(request.prompt, ChatPrompt) else ()
        return SamplingParams(
            temperature=_first(request.temperature, defaults.temperature),
            top_p=_first(request.top_p, defaults.top_p),
            top_k=_first(request.top_k, defaults.top_k),
            min_p=_first(request.min_p, defaults.min_p),
            seed=secrets.randbits(_SEED_BITS) if request.seed is None else request.seed % (1 << _SEED_BITS),
            stop=request.stop if request.ignore_eos else request.stop + template_stops,
            include_stop=request.include_stop,
            stop_token_ids=request.stop_token_ids.union(end_of_text),
            max_tokens=min(wanted, room),
            min_tokens=min(request.min_tokens, room),
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty),
            logit_bias=request.logit_bias,
            allowed_token_ids=request.allowed_token_ids,
            skip_special_tokens=request.skip_special_tokens,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            return_prompt=request.return_prompt,
        )

    def _check_tokens(self, request: GenerationRequest) -> None:
        """Ids that the request names, and whether they leave anything to draw."""
        size = self._model.spec.vocab_size
        named = {
            "logit_bias": [token for token, _ in request.logit_bias],
            "allowed_token_ids": request.allowed_token_ids or (),
            "stop_token_ids": request.stop_token_ids,
        }
        for param, token_ids in named.items():
            if token_ids and not 0 <= min(token_ids) <= max(token_ids) < size:
                raise InvalidRequestError(f"token ids must lie between 0 and {size - 1}", param=param)
        ends = request.stop_token_ids.union(self._model.tokenizer.eos_token_ids)
        if request.min_tokens and request.allowed_token_ids is not None and request.allowed_token_ids <= ends:
            raise InvalidRequestError("every allowed token ends the text, and min_tokens forbids that", param="allowed_token_ids")
        if request.bad_words and request.allowed_token_ids is not None:
            raise UnsupportedParameterError(
                "the parameter 'bad_words' is not supported together with 'allowed_token_ids'", param="bad_words"
            )


def text_length(prompt: Prompt) -> int:
    """Characters to tokenise, roughly: what decides whether that may run on the event loop. Token ids cost nothing."""
    if isinstance(prompt, ChatPrompt):
        texts = (value for message in (*prompt.messages, prompt.variables) for value in message.values())
        return len(str(prompt.tools)) + len(prompt.messages) * _MARKUP + sum(len(str(text)) for text in texts)
    return len(prompt) if isinstance(prompt, str) else 0


def _param(prompt: Prompt) -> str:
    return prompt.param if isinstance(prompt, ChatPrompt) else "prompt"


def _first(*values: T | None) -> T:
    return next(value for value in values if value is not None)
