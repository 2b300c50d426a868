"""The native shape of `/generate`: one JSON object, or the events `{text, ttft_ms}`, `{text}`..., `{text: "", done: true, totals}`.

Thoughts, where there are any, are `reasoning_content`, and in a stream events `{reasoning_content}`.
"""

from collections.abc import Sequence

from inference_server.api.formats.base import DataEvents, encode, event
from inference_server.api.schemas.native import GenerateTotals
from inference_server.core.clock import Clock
from inference_server.core.outputs import OutputDelta


class NativeFormat(DataEvents):
    """arrival_time: of the request at the server, by `clock`."""

    def __init__(self, request_id: str, arrival_time: float, clock: Clock) -> None:
        self._request_id = request_id
        self._arrival_time = arrival_time
        self._clock = clock
        self._ttft_ms: float | None = None
        self._text_sent = False

    def body(self, choices: Sequence[OutputDelta]) -> bytes:
        (result,) = choices
        thoughts = {"reasoning_content": result.reasoning} if result.reasoning else {}
        return encode({"text": result.text, **thoughts, "token_ids": result.token_ids, **self._totals(result).model_dump()})

    def events(self, delta: OutputDelta) -> bytes:
        elapsed_ms = _milliseconds(self._clock() - self._arrival_time)
        if self._ttft_ms is None:
            self._ttft_ms = elapsed_ms
        out = event(encode({"reasoning_content": delta.reasoning})) if delta.reasoning else b""
        if delta.text:
            first = {} if self._text_sent else {"ttft_ms": self._ttft_ms}
            out += event(encode({"text": delta.text, **first}))
            self._text_sent = True
        if delta.finish_reason is not None:
            times = {"ttft_ms": self._ttft_ms, "total_ms": elapsed_ms}  # both as this stream told them; the engine's are earlier
            out += event(encode({"text": "", "done": True, **self._totals(delta).model_dump(), **times}))
        return out

    def _totals(self, result: OutputDelta) -> GenerateTotals:
        assert result.finish_reason is not None
        assert result.usage is not None
        usage = result.usage
        return GenerateTotals(
            finish_reason=result.finish_reason.value,
            prompt_tokens=usage.prompt_tokens,
            tokens_generated=usage.completion_tokens,
            cache_hit_tokens=usage.cached_tokens,
            ttft_ms=None if usage.ttft_s is None else _milliseconds(usage.ttft_s),
            total_ms=_milliseconds(usage.total_s),
            request_id=self._request_id,
        )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
