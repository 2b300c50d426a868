"""Hop 5: the sampled tokens of a step to text deltas and stop decisions, in one loop over the rows.

Order: detokenise, then thoughts and tool calls of a chat, then stop strings on the visible text. The end-of-text token is returned
but has no text; the text of a stop string is cut, unless the request includes it. It decides, the scheduler acts: nothing here frees a
block or appends a token to a request.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference_server.core.errors import InferenceServerError
from inference_server.core.grammar import Constraint
from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.outputs import OutputDelta, PromptTokens, ToolCallDelta, merge_calls
from inference_server.core.plan import StepPlan, StepResult, TokenMasks
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.engine.outbox import Outbox
from inference_server.parsing.answer_parser import AnswerParser, Part
from inference_server.parsing.dialect import Dialect, with_calls
from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.detokenizer import IncrementalDetokenizer, TokenPieces
from inference_server.tokenization.stop_checker import StopChecker

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepOutputs:
    """stops and errors by request id: one whose output failed is in both. The times are those of `StepRecord`."""

    stops: dict[str, FinishReason] = field(default_factory=dict)
    errors: dict[str, InferenceServerError] = field(default_factory=dict)
    inter_token_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """How many were returned."""
        return len(self.inter_token_s) + len(self.first_token_s)


@dataclass(slots=True)
class _TextState:
    """The text side of one request.

    stop_checker: None without stop strings. parser: None where the text is not looked into. constraint: None where any token may come.
    plain: there is none of the three.
    """

    request: ScheduledRequest
    detokenizer: IncrementalDetokenizer
    stop_checker: StopChecker | None = None
    parser: AnswerParser | None = None
    constraint: Constraint | None = None
    has_text: bool = False
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self.plain = self.stop_checker is None and self.parser is None and self.constraint is None

    def take(self, token_id: int, delta: OutputDelta) -> FinishReason | None:
        """Adds what the token brings to `delta`; returns why it is the last, if it is."""
        request, sampling = self.request, self.request.sampling
        # The scheduler appends this token only after the step's outputs are known.
        num_tokens = len(request.token_ids) - request.num_prompt_tokens + 1
        end_of_text = token_id in sampling.stop_token_ids
        if self.plain and not end_of_text and num_tokens < sampling.max_tokens:
            delta.text += self.detokenizer.push(token_id)
            return None
        if not sampling.max_tokens:  # the scheduler computes a prompt up to its first token, which nobody asked for
            return FinishReason.LENGTH
        if self.constraint is not None:
            self.constraint.advance(token_id, sampling.max_tokens - num_tokens)
        shown = not end_of_text or sampling.include_stop
        stopped = shown and self._show(self.detokenizer.push(token_id), delta, num_tokens > sampling.min_tokens)
        if self.parser is not None:
            request.num_reasoning_tokens = self.parser.num_thought_pushes
        if not (stopped or end_of_text) and num_tokens < sampling.max_tokens:
            return None
        if not stopped:
            stopped = self.flush(delta) or end_of_text
        if not stopped:
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self.parser is not None and self.parser.num_calls else FinishReason.STOP

    def keep_prompt_logprobs(self, start: int, logprobs: list[TokenLogprobs]) -> None:
        """Those of the tokens after position `start` on; a request that was preempted computes some anew."""
        self.prompt_logprobs[start:] = logprobs

    def prompt(self) -> PromptTokens:
        return PromptTokens(self.request.token_ids[: self.request.num_prompt_tokens], list(self.prompt_logprobs))

    def flush(self, delta: OutputDelta) -> bool:
        """Adds what was held back until now; returns whether a stop string, or the last call allowed, ends it."""
        if self._show(self.detokenizer.flush(), delta):
            return True
        if self.parser is not None and self._show_parts(self.parser.flush(), delta, True):
            return True
        if self.stop_checker is not None:
            delta.text += self.stop_checker.flush()
        return False

    def _show(self, text: str, delta: OutputDelta, may_stop: bool = True) -> bool:
        if self.parser is not None:
            return self._show_parts(self.parser.push(text), delta, may_stop) or self.parser.finished
        return self._show_visible(text, delta, may_stop)

    def _show_visible(self, text: str, delta: OutputDelta, may_stop: bool) -> bool:
        if self.stop_checker is None:
            delta.text += text
            return False
        visible, stopped = self.stop_checker.push(text, may_stop)
        delta.text += visible
        return stopped

    def _show_parts(self, parts: Sequence[Part], delta: OutputDelta, may_stop: bool) -> bool:
        """What follows a stop string is dropped, calls too."""
        for part in parts:
            if isinstance(part, str):
                if self._show_visible(part, delta, may_stop):
                    return True
            elif isinstance(part, ToolCallDelta):
                delta.tool_calls = merge_calls((*delta.tool_calls, part))
            else:
                delta.reasoning += part.text
        return False


class OutputProcessor:
    """Holds the text state of every request that has not ended. dialect: how the model's chats mark thoughts and tool calls."""

    def __init__(self, tokenizer: TokenizerLike, dialect: Dialect | None = None) -> None:
        self._tokenizer = tokenizer
        self._dialect = dialect
        self._states: dict[str, _TextState] = {}
        self._pieces: dict[tuple[bool, frozenset[int]], TokenPieces] = {}  # by whether special tokens are left out, and which are not
        self._num_constrained = 0
        # By whether tools may be called: ids of special tokens that are markers and so not left out.
        self._markers = {
            tools: _single_tokens(tokenizer, found.tokens(tools)) if found else frozenset()
            for tools, found in ((False, dialect), (True, with_calls(dialect)))
        }

    def add(self, request: ScheduledRequest) -> None:
        sampling, mode = request.sampling, request.answer
        dialect = with_calls(self._dialect) if mode and mode.tools else self._dialect
        parser = AnswerParser(dialect, mode) if dialect and mode else None
        pieces = self._pieces_of(sampling.skip_special_tokens, self._markers[mode.tools] if mode else frozenset())
        detokenizer = IncrementalDetokenizer(pieces, request.token_ids[-1:], request.strip_leading_space)
        stop_checker = StopChecker(sampling.stop, sampling.include_stop) if sampling.stop else None
        constraint = request.grammar.start() if request.grammar is not None else None
        self._num_constrained += constraint is not None
        self._states[request.request_id] = _TextState(request, detokenizer, stop_checker, parser, constraint)

    def constrains(self, plan: StepPlan) -> bool:
        """Whether a grammar decides what a row of this step may say."""
        return self._num_constrained > 0 and any(request.grammar is not None for request in plan.requests)

    def masks(self, plan: StepPlan) -> TokenMasks:
        """What the grammars allow in this step, once the tokens of the steps before have been processed."""
        masks = {}
        for row, request in enumerate(plan.requests):
            state = self._states.get(request.request_id)
            if state is not None and state.constraint is not None and (mask := state.constraint.mask) is not None:
                masks[row] = mask
        return masks

    def process(self, plan: StepPlan, result: StepResult, now: float, outbox: Outbox) -> StepOutputs:
        """Deltas and stops of a collected step, and the token times of its requests. Call it before `scheduler.update`.

        A fault in one row ends that request alone.
        """
        outputs, states = StepOutputs(), self._states
        for row, logprobs in result.prompt_logprobs.items():
            if (state := states.get(plan.requests[row].request_id)) is not None:
                state.keep_prompt_logprobs(plan.starts[row], logprobs)
        for row, (request, token_id) in enumerate(zip(plan.requests, result.token_ids, strict=True)):
            state = states.get(request.request_id)
            if token_id < 0 or state is None:  # the row did not sample, or its request has ended since the launch
                continue
            delta = outbox.delta(request.request_id)
            delta.token_ids.append(token_id)
            if request.last_token_time is None:
                outbox.hurry(request.request_id)
                delta.prompt = state.prompt() if request.sampling.return_prompt else None
                request.first_token_time = now
                outputs.first_token_s.append(now - request.arrival_time)
            else:
                outputs.inter_token_s.append(now - request.last_token_time)
            request.last_token_time = now
            if row in result.logprobs:
                delta.logprobs.append(result.logprobs[row])
            try:
                reason = state.take(token_id, delta)
            except InferenceServerError as error:
                outputs.errors[request.request_id], reason = error, FinishReason.ERROR
            except Exception:
                logger.exception("request %s: its output cannot be turned into text", request.request_id)
                failed = InferenceServerError("the output could not be turned into text")
                outputs.errors[request.request_id], reason = failed, FinishReason.ERROR
            if not state.has_text:
                state.has_text = bool(delta.text or delta.reasoning or delta.tool_calls)
            if reason is not None:
                outputs.stops[request.request_id] = reason
                if not request.sampling.max_tokens:
                    delta.token_ids, delta.logprobs = [], []
        return outputs

    def _pieces_of(self, skip_special_tokens: bool, keep: frozenset[int]) -> TokenPieces:
        key = skip_special_tokens, keep
        if key not in self._pieces:
            self._pieces[key] = TokenPieces(self._tokenizer, *key)
        return self._pieces[key]

    def has_text(self, request_id: str) -> bool:
        """Whether anything of the request's answer has gone out."""
        return self._states[request_id].has_text

    def flush(self, request_id: str, delta: OutputDelta) -> None:
        """Adds what was held back to `delta`, for a request that ends between tokens."""
        self._states[request_id].flush(delta)

    def remove(self, request_id: str) -> None:
        state = self._states.pop(request_id, None)
        if state is not None and state.constraint is not None:
            self._num_constrained -= 1


def _single_tokens(tokenizer: TokenizerLike, texts: Sequence[str]) -> frozenset[int]:
    """The ids of those texts that are one token."""
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return frozenset(found[0] for found in ids if len(found) == 1)
