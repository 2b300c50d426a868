"""`GET /requests` and `/requests/{id}`: what happened to a request, while it runs and for a while after. No prompt, no output."""

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from inference_server.api.context import ApiContext, Context
from inference_server.api.formats.timeline import row, timeline
from inference_server.core.errors import NotReadyError
from inference_server.core.records import RequestRecord

router = APIRouter(prefix="/requests", tags=["stats"])


@router.get("")
async def requests(context: Context, limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> dict[str, Any]:
    """The requests that are open, oldest first, and the latest that have ended, newest first."""
    open_ones = await _open(context)
    return {"open": [row(record) for record in open_ones[:limit]], "ended": [row(record) for record in context.request_log.latest(limit)]}


@router.get("/{id:path}")
async def request(id: str, context: Context) -> dict[str, Any]:
    """One request's timeline, by the server's id or by the X-Request-Id or X-Trace-Id that its client sent."""
    record = context.request_log.find(id) or _find(id, await _open(context)) or context.request_log.find(id)
    if record is None:
        raise HTTPException(404, "no open request has this id, nor has any of the latest that ended")
    return timeline(record, context.wall_clock() - (context.clock() - record.arrival_time))


async def _open(context: ApiContext) -> tuple[RequestRecord, ...]:
    try:
        return await context.engine.open_requests()
    except TimeoutError:
        raise NotReadyError("the engine is busy with a long step") from None


def _find(id: str, records: tuple[RequestRecord, ...]) -> RequestRecord | None:
    return next((record for record in records if id in (record.request_id, record.origin.client_id, record.origin.trace_id)), None)
