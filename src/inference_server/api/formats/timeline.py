"""A `RequestRecord` as JSON: in one row, and as a timeline that says where the time went.

Times are milliseconds from the arrival of the request at the server. What has not happened is null.
"""

from collections.abc import Iterator
from typing import Any

from inference_server.core.records import RequestRecord
from inference_server.core.request_history import EventKind, RequestEvent


def row(record: RequestRecord) -> dict[str, Any]:
    """What a list of requests shows of one."""
    return {
        "request_id": record.request_id,
        "client_id": record.origin.client_id,
        "session_id": record.origin.session_id,
        "status": record.status.value,
        "finish_reason": record.finish_reason and record.finish_reason.value,
        "error_code": record.error_code,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "computed_tokens": record.num_computed_tokens,
        "output_tokens": record.output_tokens,
        "preemptions": record.num_preemptions,
        "queue_ms": _since(record, record.admitted_time),
        "ttft_ms": _since(record, record.first_token_time),
        "total_ms": _since(record, record.end_time),
    }


def timeline(record: RequestRecord, received_at: float) -> dict[str, Any]:
    """received_at: seconds since the epoch. phases: how long it queued, prefilled and decoded; null where it did not come that far.

    Of an open request, the phase that it is in lasts until now.
    """
    return {
        **row(record),
        "received_at": round(received_at, 3),
        "phases": {"queue_ms": _queue_ms(record), "prefill_ms": _prefill_ms(record), "decode_ms": _decode_ms(record)},
        "events": sorted(_events(record), key=lambda event: float(event["at_ms"])),
        "events_dropped": record.events_dropped,
    }


def _queue_ms(record: RequestRecord) -> float | None:
    return _between(record.arrival_time, record.end_time if record.admitted_time is None else record.admitted_time)


def _prefill_ms(record: RequestRecord) -> float | None:
    return _between(record.admitted_time, record.end_time if record.first_token_time is None else record.first_token_time)


def _decode_ms(record: RequestRecord) -> float | None:
    """An ended request decodes until its last token; whatever follows that is not the model's."""
    return _between(record.first_token_time, record.last_token_time if record.finish_reason else record.end_time)


def _events(record: RequestRecord) -> Iterator[dict[str, Any]]:
    yield {"event": "received", "at_ms": 0.0}
    if record.admitted_time is not None:
        yield {"event": "admitted", "at_ms": _since(record, record.admitted_time), "cached_tokens": record.cached_tokens}
    yield from (_event(record, event) for event in record.events)
    if record.first_token_time is not None:
        yield {"event": "first_token", "at_ms": _since(record, record.first_token_time)}
    if record.finish_reason is None:
        return
    if record.last_token_time is not None:
        yield {"event": "last_token", "at_ms": _since(record, record.last_token_time), "output_tokens": record.output_tokens}
    yield {"event": "finished", "at_ms": _since(record, record.end_time), "reason": record.finish_reason.value}


def _event(record: RequestRecord, event: RequestEvent) -> dict[str, Any]:
    common = {"event": event.kind.value, "at_ms": _since(record, event.start_time)}
    match event.kind:
        case EventKind.HELD:
            return {**common, "gate": event.gate}
        case EventKind.PREFILL:
            duration_ms = _between(event.start_time, event.end_time)
            return {**common, "duration_ms": duration_ms, "tokens": event.num_tokens, "rows": event.num_rows}
        case EventKind.PREEMPTED:
            return common


def _since(record: RequestRecord, time: float | None) -> float | None:
    return _between(record.arrival_time, time)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(1000 * max(0.0, end - start), 3)
