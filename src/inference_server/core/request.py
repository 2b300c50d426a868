"""`ScheduledRequest`: one generation in flight, and the states it goes through.

Only the engine thread writes it. The counters follow one rule: `num_computed_tokens` (KV scheduled) chases `num_tokens`;
prefill chunks, decode steps, prefix hits and resumption after preemption are all that same chase.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from inference_server.core.grammar import CompiledGrammar
from inference_server.core.request_history import RequestHistory
from inference_server.core.sampling_params import SamplingParams


class RequestStatus(StrEnum):
    """WAITING and PREEMPTED hold no slot and no block; PREFILLING: some known token has not been scheduled yet; RUNNING: it decodes."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """LENGTH: it has all of its max_tokens. TIMEOUT: its deadline passed. ABORT: its client or a shutdown ended it."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    TIMEOUT = "timeout"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """Who asked, and by which ids of its own a client finds the request again. Nothing is decided by any of it but `fairness_key`.

    client_id, trace_id, traceparent: of the headers X-Request-Id, X-Trace-Id and traceparent; spans hang under the last.
    session_id: the conversation. fairness_key: whose share of the service the request uses.
    """

    client_id: str = ""
    trace_id: str = ""
    traceparent: str = ""
    session_id: str = ""
    fairness_key: str = ""


@dataclass(frozen=True, slots=True)
class AnswerMode:
    """How the answer of a chat is to be read.

    in_thought: the prompt ends inside a thought. tools: the model may call tools, and with parallel several in one answer.
    """

    in_thought: bool = False
    tools: bool = False
    parallel: bool = True


@dataclass(slots=True)
class BlockTable:
    """The blocks of one request in one layer group, by logical block index.

    `block_ids[i]` holds the KV of tokens [i * block_size, (i + 1) * block_size); 0 is the null block and stands for a
    block that has fallen out of the window. Append-only apart from that.
    """

    block_ids: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """State of one generation. Times are seconds of the engine's monotonic clock.

    token_ids: prompt, then the returned output tokens.
    strip_leading_space: the first space of the answer belongs to the prompt's side of the dialogue and is not shown.
    answer: None for a raw prompt, whose text is not looked into. grammar: what the answer must fit, compiled.
    num_computed_tokens: tokens whose KV has been scheduled (the "scheduled" counter).
    num_collected_tokens: leading tokens whose KV is known to be written and whose ids are known (the "returned" counter);
        only these may be shared or cached.
    num_inflight_tokens: sampled on the device, not collected yet; they count in `num_tokens`.
    num_reasoning_tokens: output tokens that belong to thoughts.
    num_cached_tokens: prompt tokens taken from the prefix cache, or from a parent's prompt, at first admission.
    slot: row of the backend's persistent batch while admitted, else -1.
    """

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    arrival_time: float
    origin: RequestOrigin = field(default_factory=RequestOrigin)
    cache_salt: str = ""
    priority: int = 0
    admission_deadline: float = float("inf")
    deadline: float = float("inf")
    strip_leading_space: bool = False
    answer: AnswerMode | None = None
    grammar: CompiledGrammar | None = None
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_collected_tokens: int = 0
    num_inflight_tokens: int = 0
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_preemptions: int = 0
    slot: int = -1
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    block_tables: list[BlockTable] = field(default_factory=list)
    admitted_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    history: RequestHistory = field(default_factory=RequestHistory)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens, those still on the device included."""
        return len(self.token_ids) + self.num_inflight_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output tokens that have been returned."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED
