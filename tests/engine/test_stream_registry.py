"""When readers are woken, and what they get then."""

import asyncio

import pytest

from inference_server.core.errors import RequestAbortedError
from inference_server.core.outputs import OutputDelta
from inference_server.core.request import FinishReason
from inference_server.engine.request_stream import RequestStream
from inference_server.engine.stream_registry import StreamRegistry

pytestmark = pytest.mark.anyio


async def test_a_hand_over_wakes_every_reader_and_a_slow_one_gets_merged_deltas() -> None:
    registry = StreamRegistry()
    registry.bind(asyncio.get_running_loop())
    streams = [RequestStream([f"r{n}"], lambda request_id: None) for n in range(70)]
    for stream in streams:
        registry.take_places()
        registry.open(stream)
    waiting = [asyncio.create_task(anext(stream)) for stream in streams[1:]]
    await asyncio.sleep(0)
    for text in ("a", "b"):
        await asyncio.to_thread(registry.hand_over, {s.request_ids[0]: OutputDelta(text=text, token_ids=[1]) for s in streams})
    assert {delta.text for delta in await asyncio.wait_for(asyncio.gather(*waiting), 5)} <= {"a", "ab"}
    assert (await anext(streams[0])).text == "ab"
    assert (registry.num_places, registry.num_streams) == (70, 70)


async def test_close_all_ends_each_stream_once_and_quiet_follows() -> None:
    registry = StreamRegistry()
    registry.bind(asyncio.get_running_loop())
    stream = RequestStream(["r"], lambda request_id: None)
    registry.take_places()
    registry.open(stream)
    waiting = asyncio.create_task(registry.wait_quiet())
    registry.close_all(lambda: RequestAbortedError("over"))
    registry.close_all(lambda: RequestAbortedError("again"))
    registry.hand_over({"r": OutputDelta(text="late", finish_reason=FinishReason.STOP)})
    await asyncio.wait_for(waiting, 1)
    with pytest.raises(RequestAbortedError, match="over"):
        await stream.collect()
    assert registry.num_places == 0


@pytest.mark.parametrize(("end", "aborts"), [(None, ["r"]), (FinishReason.STOP, [])])
async def test_leaving_aborts_once_what_has_not_ended(end: FinishReason | None, aborts: list[str]) -> None:
    seen: list[str] = []
    stream = RequestStream(["r"], seen.append)
    stream.push("r", OutputDelta(text="a", finish_reason=end))
    async with stream:
        pass
    await stream.aclose()
    assert [delta async for delta in stream] == []
    assert seen == aborts
