"""Hop 5: the sampled tokens of a step to text deltas and stop decisions, in one loop over the rows.

Order: detokenise, then stop strings on the visible text. The end-of-text token is returned but has no text; the text of a stop
string is cut, unless the request includes it. It decides, the scheduler acts: nothing here frees a block or appends a token to a request.
"""

import logging
from dataclasses import dataclass, field

from inference_server.core.errors import InferenceServerError
from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.outputs import OutputDelta, PromptTokens
from inference_server.core.plan import StepPlan, StepResult
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.detokenizer import IncrementalDetokenizer
from inference_server.tokenization.stop_checker import StopChecker

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepOutputs:
    """deltas and stops by request id; a delta of a request that failed carries its error. The times are those of `StepRecord`."""

    deltas: dict[str, OutputDelta] = field(default_factory=dict)
    stops: dict[str, FinishReason] = field(default_factory=dict)
    inter_token_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _TextState:
    """The text side of one request."""

    request: ScheduledRequest
    detokenizer: IncrementalDetokenizer
    stop_checker: StopChecker
    has_text: bool = False
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, token_id: int) -> tuple[str, FinishReason | None]:
        sampling = self.request.sampling
        if not sampling.max_tokens:  # the scheduler computes a prompt up to its first token, which nobody asked for
            return "", FinishReason.LENGTH
        # The scheduler appends this token only after the step's outputs are known.
        num_tokens = self.request.num_output_tokens + 1
        end_of_text = token_id in sampling.stop_token_ids
        new_text = "" if end_of_text and not sampling.include_stop else self.detokenizer.push([token_id])
        text, stopped = self.stop_checker.push(new_text, num_tokens > sampling.min_tokens)
        if stopped:
            return text, FinishReason.STOP
        if not end_of_text and num_tokens < sampling.max_tokens:
            return text, None
        tail, stopped = self.flush()
        return text + tail, FinishReason.STOP if end_of_text or stopped else FinishReason.LENGTH

    def keep_prompt_logprobs(self, start: int, logprobs: list[TokenLogprobs]) -> None:
        """Those of the tokens after position `start` on; a request that was preempted computes some anew."""
        self.prompt_logprobs[start:] = logprobs

    def prompt(self) -> PromptTokens:
        return PromptTokens(self.request.token_ids[: self.request.num_prompt_tokens], list(self.prompt_logprobs))

    def flush(self) -> tuple[str, bool]:
        """The text held back until now, and whether a stop string ends it."""
        text, stopped = self.stop_checker.push(self.detokenizer.flush())
        return (text, True) if stopped else (text + self.stop_checker.flush(), False)


class OutputProcessor:
    """Holds the text state of every request that has not ended."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
        self._states: dict[str, _TextState] = {}

    def add(self, request: ScheduledRequest) -> None:
        sampling = request.sampling
        detokenizer = IncrementalDetokenizer(
            self._tokenizer, request.token_ids[-1:], sampling.skip_special_tokens, strip_leading_space=request.strip_leading_space
        )
        self._states[request.request_id] = _TextState(request, detokenizer, StopChecker(sampling.stop, sampling.include_stop))

    def process(self, plan: StepPlan, result: StepResult, now: float) -> StepOutputs:
        """Deltas and stops of a collected step, and the token times of its requests. Call it before `scheduler.update`.

        A fault in one row ends that request alone.
        """
        outputs = StepOutputs()
        for row, logprobs in result.prompt_logprobs.items():
            if (state := self._states.get(plan.requests[row].request_id)) is not None:
                state.keep_prompt_logprobs(plan.starts[row], logprobs)
        for row, (request, token_id) in enumerate(zip(plan.requests, result.token_ids, strict=True)):
            state = self._states.get(request.request_id)
            if token_id < 0 or state is None:  # the row did not sample, or its request has ended since the launch
                continue
            delta = OutputDelta(token_ids=[token_id])
            if request.last_token_time is None:
                delta.prompt = state.prompt() if request.sampling.return_prompt else None
                request.first_token_time = now
                outputs.first_token_s.append(now - request.arrival_time)
            else:
                outputs.inter_token_s.append(now - request.last_token_time)
            request.last_token_time = now
            if row in result.logprobs:
                delta.logprobs = [result.logprobs[row]]
            try:
                delta.text, reason = state.take(token_id)
            except Exception:
                logger.exception("request %s: its output cannot be turned into text", request.request_id)
                delta.error, reason = InferenceServerError("the output could not be turned into text"), FinishReason.ERROR
            state.has_text = state.has_text or bool(delta.text)
            outputs.deltas[request.request_id] = delta
            if not request.sampling.max_tokens:
                delta.token_ids, delta.logprobs = [], []
            if reason is not None:
                outputs.stops[request.request_id] = reason
        return outputs

    def has_text(self, request_id: str) -> bool:
        """Whether any text of the request has gone out."""
        return self._states[request_id].has_text

    def flush(self, request_id: str) -> str:
        """The text held back, for a request that ends between tokens."""
        return self._states[request_id].flush()[0]

    def remove(self, request_id: str) -> None:
        self._states.pop(request_id, None)
