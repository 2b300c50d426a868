"""The record of a request that has ended, for the sinks that write such records down."""

from inference_server.core.records import RequestRecord
from inference_server.core.request import FinishReason, RequestOrigin

ENDED = RequestRecord(
    request_id="r1",
    origin=RequestOrigin("client", "trace", session_id="session", fairness_key="key:1"),
    finish_reason=FinishReason.STOP,
    error_code=None,
    prompt_tokens=7,
    cached_tokens=4,
    output_tokens=3,
    num_preemptions=2,
    arrival_time=100.0,
    admitted_time=100.5,
    first_token_time=102.0,
    end_time=106.0,
)
