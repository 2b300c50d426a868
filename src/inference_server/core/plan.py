"""What crosses the seam between scheduler and backend: `StepPlan` down, `StepResult` up.

A plan refers to the mutable requests themselves and is read by `launch` on the thread that made it, so nothing is copied a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.request import ScheduledRequest

TokenMasks: TypeAlias = Mapping[int, bytes]
"""By row of the plan, the tokens that a grammar allows, as `Constraint.mask` packs them. Rows without an entry are free."""


class StepKind(StrEnum):
    """DECODE: every row adds one token. PREFILL: every row computes known tokens. MIXED: there are rows of both kinds."""

    DECODE = "decode"
    PREFILL = "prefill"
    MIXED = "mixed"

    @classmethod
    def of(cls, num_prefills: int, num_rows: int) -> "StepKind":
        """The kind of a step of `num_rows` rows, `num_prefills` of which compute known tokens."""
        if num_prefills == 0:
            return cls.DECODE
        return cls.MIXED if num_prefills < num_rows else cls.PREFILL


class BlockCopy(NamedTuple):
    """Copy one block inside a layer group before the forward runs (copy-on-write)."""

    group: int
    src: int
    dst: int


@dataclass(slots=True)
class StepPlan:
    """One forward pass. The lists run in parallel, one entry a row; rows that compute a single token come first.

    starts[i]: position of the row's first token in this step. A token whose position is not below `len(request.token_ids)`
    has been sampled but not collected: the backend takes it from the device, by `request.slot`.
    num_new_tokens[i]: tokens of the row computed in this step, at least 1.
    samples[i]: the row reaches its last known token, so logits and one sampled token are wanted.
    num_decodes: the number of rows that decode. They come first; each is in the slot that it had in its step before, computes the one
    token that was sampled there, and samples the next.
    """

    step_id: int
    requests: list[ScheduledRequest] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    num_decodes: int = 0

    def add(self, request: ScheduledRequest, start: int, num_new_tokens: int, samples: bool) -> None:
        self.requests.append(request)
        self.starts.append(start)
        self.num_new_tokens.append(num_new_tokens)
        self.samples.append(samples)

    def __len__(self) -> int:
        return len(self.requests)

    def repeats(self, requests: Sequence[ScheduledRequest]) -> bool:
        """Whether the rows are those of `requests`, the step before, and all of them decode: each then still has the slot it had there."""
        return self.num_decodes == len(self) and self.requests == requests

    @property
    def num_tokens(self) -> int:
        return sum(self.num_new_tokens)

    @property
    def prefill_rows(self) -> range:
        """Indices of the rows that compute known tokens, even if only one."""
        return range(self.num_decodes, len(self.requests))

    @property
    def kind(self) -> StepKind:
        return StepKind.of(len(self.prefill_rows), len(self))


@dataclass(slots=True)
class StepResult:
    """What one collected step produced. token_ids[i] is row i's sampled token, or -1 where the row did not sample.

    logprobs, prompt_logprobs: by row, where the request wants them: those of the sampled token, and of the prompt tokens that follow
    the ones computed.
    block_mass: now and then, when an eviction policy asked for it, the attention mass of decoding rows by block id of the full
    group since the block was first written, older mass counting less.
    replayed: whether its forward was a captured CUDA graph.
    elapsed_s: what the step took, set by the engine: from its launch, or from the end of the step before if that was later, to
    its end. 0 when nobody measured it.
    """

    step_id: int
    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    block_mass: list[float] | None = None
    replayed: bool = False
    elapsed_s: float = 0.0
