"""The events of the timeline as lines of JSON: what the scheduler decided, the phases of each step, and the ends of requests.

Every line has `event` and `ts`, in microseconds since the epoch; what lasts has `dur`, in microseconds, and what belongs to a step `step`.
`docs/operations.md` lists the events. No text of a client is in them but its trace id.
"""

import json
from collections import deque
from collections.abc import Iterator

from inference_server.core.phases import Phase, PhaseTime
from inference_server.core.plan import StepPlan
from inference_server.core.records import RequestRecord, StepRecord

SCHEMA_VERSION = 1
STEPS_BEHIND = 2  # a request's end is recorded before its last step, and it may also be in the step in flight after that
NO_SLOT = -1


class TimelineEvents:
    """Knows which request has which slot, so it has to see all records in their order.

    epoch: the time of the clock's zero, in seconds since the epoch.
    """

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch
        self._slots: dict[str, int] = {}
        self._ended: deque[tuple[int, str]] = deque()
        self._num_steps = 0

    def of_step(self, record: StepRecord) -> Iterator[str]:
        """The lines of the decisions that came with the step, then of its phases, in their order."""
        for decision in record.decisions:
            fields: dict[str, object] = {"event": decision.kind, "ts": self._us(decision.time), "step": decision.step_id}
            fields["request"] = decision.request_id
            if decision.slot != NO_SLOT:
                self._give_slot(decision.request_id, decision.slot)
                fields["slot"] = decision.slot
            if decision.gate:
                fields["gate"] = decision.gate
            yield json.dumps(fields)
        for phase in record.phases:
            yield self._phase(record, phase)
        self._num_steps += 1
        while self._ended and self._ended[0][0] <= self._num_steps:
            self._slots.pop(self._ended.popleft()[1], None)

    def _give_slot(self, request_id: str, slot: int) -> None:
        """A request that had the slot before has ended. If a full queue dropped the record of that, only this takes its slot away."""
        known = {ended for _, ended in self._ended}
        for former in [other for other, taken in self._slots.items() if taken == slot and other not in known]:
            del self._slots[former]
        self._slots[request_id] = slot

    def of_request(self, record: RequestRecord) -> str:
        times = (record.arrival_time, record.admitted_time, record.first_token_time)
        arrival, admitted, first_token = (None if time is None else self._us(time) for time in times)
        self._ended.append((self._num_steps + STEPS_BEHIND, record.request_id))
        return json.dumps(
            {
                "event": "end",
                "ts": self._us(record.end_time),
                "request": record.request_id,
                "trace": record.origin.trace_id,
                "reason": record.finish_reason,
                "error": record.error_code,
                "arrival": arrival,
                "admitted": admitted,
                "first_token": first_token,
                "prompt_tokens": record.prompt_tokens,
                "cached_tokens": record.cached_tokens,
                "output_tokens": record.output_tokens,
            }
        )

    def _phase(self, record: StepRecord, time: PhaseTime) -> str:
        """Written by hand: all values are numbers, and this is five lines a step."""
        start = self._us(time.start_time)
        line = f'{{"event": "{time.phase}", "ts": {start}, "dur": {self._us(time.end_time) - start}, "step": {record.step_id}'
        if time.phase is Phase.SCHEDULE and record.plan is not None:
            line += f', "kind": "{record.kind}", "tokens": {record.num_tokens}, {self._rows(record.plan)}'
        elif time.phase is Phase.OUTPUT:
            line += f', "returned": {record.num_returned_tokens}, "waiting": {record.num_waiting}'
            line += f', "running": {record.num_active}, "kv_blocks": {record.num_used_blocks}'
        return line + "}"

    def _rows(self, plan: StepPlan) -> str:
        """The slots of the rows that decode, and [slot, position, tokens] of the others."""
        slots = [self._slots.get(request.request_id, NO_SLOT) for request in plan.requests]
        chunks = [[slots[row], plan.starts[row], plan.num_new_tokens[row]] for row in plan.prefill_rows]
        return f'"decodes": {slots[: plan.num_decodes]}, "prefills": {chunks}'

    def _us(self, seconds: float) -> int:
        return round((self._epoch + seconds) * 1e6)
