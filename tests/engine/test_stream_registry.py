"""When readers are woken, what they get then, and which deltas bypass them."""

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


async def test_what_is_diverted_wakes_nobody_and_overtakes_nothing() -> None:
    stream = RequestStream(["r"], lambda request_id: None)
    taken: list[str] = []
    read: list[str] = []
    room = True

    async def reading() -> None:
        read.extend([delta.text async for delta in stream])

    def push(text: str, finish_reason: FinishReason | None = None) -> None:
        stream.push("r", OutputDelta(text=text, finish_reason=finish_reason))

    def take(delta: OutputDelta) -> bool:
        if room:
            taken.append(delta.text)
        return room

    stream.divert(take)
    push("a")  # the reader has not asked for a delta
    reader = asyncio.create_task(reading())
    await asyncio.sleep(0)
    push("b")
    room = False
    push("c")
    room = True
    push("d")  # the reader has been given a delta, and may not have handled it yet
    await asyncio.sleep(0)
    push("e")
    push("f", FinishReason.STOP)
    await asyncio.wait_for(reader, 5)
    assert (taken, read) == (["b", "e"], ["a", "cd", "f"])


async def test_a_delta_that_cannot_be_taken_fails_its_own_reader_alone() -> None:
    registry = StreamRegistry()
    registry.bind(asyncio.get_running_loop())
    streams = [RequestStream([name], lambda request_id: None) for name in "ab"]
    for stream in streams:
        registry.take_places()
        registry.open(stream)
        stream.divert(lambda delta: bool(delta.token_ids[0]))
    readers = [asyncio.create_task(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    registry.hand_over({"a": OutputDelta(text="none"), "b": OutputDelta(text="one", token_ids=[0])})
    with pytest.raises(IndexError):
        await asyncio.wait_for(readers[0], 5)
    assert (await asyncio.wait_for(readers[1], 5)).text == "one"
