"""When readers are woken, and what they get then."""

import asyncio

import pytest

from inference_server.core.errors import RequestAbortedError
from inference_server.core.outputs import OutputDelta
from inference_server.core.request import FinishReason
from inference_server.engine.request_stream import RequestStream
from inference_server.engine.stream_registry import StreamRegistry

pytestmark = pytest.mark.anyio


async def read(registry: StreamRegistry, number: int, steps: int) -> list[list[OutputDelta]]:
    """The deltas that waiting readers get of `steps` quick steps, the last of them terminal."""
    streams = [RequestStream([f"r{n}"], lambda request_id: None) for n in range(number)]
    for stream in streams:
        registry.take_places()
        registry.open(stream)

    async def reader(stream: RequestStream) -> list[OutputDelta]:
        return [delta async for delta in stream]

    readers = [asyncio.create_task(reader(stream)) for stream in streams]
    for step in range(steps):
        end = FinishReason.STOP if step == steps - 1 else None
        deltas = {s.request_ids[0]: OutputDelta(text=f"{step},", token_ids=[step], finish_reason=end) for s in streams}
        await asyncio.to_thread(registry.hand_over, deltas)
        for _ in range(3):
            await asyncio.sleep(0)
    return await asyncio.gather(*readers)


@pytest.mark.parametrize(("number", "crowded"), [(64, False), (65, True)])
async def test_deltas_are_merged_above_64_streams_alone(number: int, crowded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_server.engine.stream_registry._MERGE_S", 30.0)
    registry = StreamRegistry()
    registry.bind(asyncio.get_running_loop())
    reads = await asyncio.wait_for(read(registry, number, steps=5), 10)
    for deltas in reads:
        assert [d.text for d in deltas] == (["0,", "1,2,3,4,"] if crowded else ["0,", "1,", "2,", "3,", "4,"])
        assert [t for d in deltas for t in d.token_ids] == [0, 1, 2, 3, 4]
    assert (registry.num_places, registry.num_streams) == (0, 0)


async def test_sleeping_readers_are_woken_without_another_step() -> None:
    registry = StreamRegistry()
    registry.bind(asyncio.get_running_loop())
    streams = [RequestStream([f"r{n}"], lambda request_id: None) for n in range(70)]
    for stream in streams:
        registry.take_places()
        registry.open(stream)
    for text in ("first", "second"):
        waiting = [asyncio.create_task(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        registry.hand_over({stream.request_ids[0]: OutputDelta(text=text) for stream in streams})
        assert {d.text for d in await asyncio.wait_for(asyncio.gather(*waiting), 1)} == {text}


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
