"""Runs what one client asked for: whole or streamed, and never longer than the client stays.

A stream's response begins with its first delta, so that a failure before it has a proper status; but it waits no longer than one ping
interval for that, or a proxy might give up during a long prompt. A later failure is an event, and the format says how a stream ends.
The response's task takes the first and the last delta, and those for which a slow client has no room yet. The events of all others are
written in the callback that hands the delta over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from fastapi import Request, Response

from inference_server.api.body_writer import BodyWriter
from inference_server.api.context import ApiContext
from inference_server.api.fairness import fairness_key
from inference_server.api.formats.base import ResponseFormat
from inference_server.api.presence import while_connected
from inference_server.api.schemas.sampling import SamplingBody
from inference_server.api.sse import PING, TokenStreamResponse
from inference_server.core.generation import ChatPrompt, GenerationRequest
from inference_server.core.outputs import OutputDelta
from inference_server.core.request import RequestOrigin
from inference_server.engine.request_stream import RequestStream

FormatFactory = Callable[[str], ResponseFormat]


def generation_of(
    request: Request, body: SamplingBody, prompt: str | Sequence[int] | ChatPrompt, asker: str, session_id: str = "", **fields: Any
) -> GenerationRequest:
    """What `body` asks for `prompt`. asker: the session or user that it names. fields: those of `GenerationRequest` that one route has."""
    return GenerationRequest(
        prompt=prompt,
        arrival_time=request.state.arrival_time,
        origin=RequestOrigin(
            client_id=request.state.client_id,
            trace_id=request.state.trace_id,
            traceparent=request.state.traceparent,
            session_id=session_id,
            fairness_key=fairness_key(request, asker),
        ),
        **body.sampling_fields(),
        **fields,
    )


async def respond(
    request: Request, context: ApiContext, generations: Sequence[GenerationRequest], make: FormatFactory, stream: bool
) -> Response:
    """The response to all generations; `make` gets the first one's id. Raises the engine's error, or ClientDisconnectedError."""
    if stream:
        tokens, first = await while_connected(request.receive, _open(context, generations))
        writer = BodyWriter.of(request.scope)
        content = _events(tokens, first, make(tokens.request_ids[0]), writer)
        return TokenStreamResponse(content, partial(_close, tokens, first), context.options.ping_interval_s, writer)
    request_id, choices = await while_connected(request.receive, _collect(context, generations))
    return Response(make(request_id).body(choices), media_type="application/json")


async def _collect(context: ApiContext, generations: Sequence[GenerationRequest]) -> tuple[str, list[OutputDelta]]:
    tokens = await context.engine.generate(*generations)
    try:
        return tokens.request_ids[0], await tokens.collect_choices()
    finally:
        await tokens.aclose()


async def _open(context: ApiContext, generations: Sequence[GenerationRequest]) -> tuple[RequestStream, asyncio.Future[OutputDelta]]:
    tokens = await context.engine.generate(*generations)
    first = asyncio.ensure_future(anext(tokens))
    try:
        await asyncio.wait((first,), timeout=context.options.ping_interval_s)
        if first.done() and (error := first.result().error) is not None:
            raise error
    except BaseException:
        await _close(tokens, first)
        raise
    return tokens, first


async def _close(tokens: RequestStream, first: asyncio.Future[OutputDelta]) -> None:
    first.cancel()
    await tokens.aclose()


async def _events(
    tokens: RequestStream, first: asyncio.Future[OutputDelta], response_format: ResponseFormat, writer: BodyWriter | None
) -> AsyncIterator[bytes]:
    """The bytes of the body, asked for once the response's head is out. What `writer` can write at once does not come this way."""
    if not first.done():
        yield PING
    if writer is not None:
        tokens.divert(partial(_write, writer, response_format))
    delta = await first
    while delta.error is None and not tokens.exhausted:
        if chunk := response_format.events(delta):
            yield chunk
        delta = await anext(tokens)
    yield (response_format.failure(delta.error) if delta.error else response_format.events(delta)) + response_format.end


def _write(writer: BodyWriter, response_format: ResponseFormat, delta: OutputDelta) -> bool:
    """Write the events of `delta` now, if the client keeps up. Returns whether it did."""
    if not writer.ready:
        return False
    if chunk := response_format.events(delta):
        writer.write(chunk)
    return True
