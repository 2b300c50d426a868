"""`StepPace`: how long the steps under way may take before the engine counts as stalled.

A fixed limit cannot do: a prompt of a few hundred tokens takes milliseconds on a GPU and minutes on a slow CPU. So a step has a fixed
time, and on top a multiple of what its tokens take at the pace of the steps before it.
"""

from inference_server.core.records import RequestRecord, StepRecord

COLD_PACE_S = 0.25  # a token, before anything has been measured: first steps also compile
MARGIN = 4.0  # for contexts that grow, and for rows that share less of a step's weights than those before them
WEIGHT = 0.2  # of the latest step, so that 20 steps leave 1 % of what was assumed before


class StepPace:
    """A `RecordSink` that the engine thread writes and any thread reads."""

    def __init__(self) -> None:
        self._s_per_token = COLD_PACE_S

    def on_step(self, record: StepRecord) -> None:
        measured = (record.end_time - record.start_time) / record.num_tokens
        self._s_per_token += WEIGHT * (measured - self._s_per_token)

    def on_request(self, record: RequestRecord) -> None: ...

    def allowance_s(self, num_tokens: int) -> float:
        """The longest that steps of `num_tokens` tokens together should take, in seconds."""
        return MARGIN * self._s_per_token * num_tokens
