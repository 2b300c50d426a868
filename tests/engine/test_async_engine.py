"""The engine on its thread: streams, admission and aborts."""

import asyncio
from time import monotonic

import pytest
from engine_fakes import EchoBackend, RecordList, loaded, scheduler_of
from engine_serving import asking, freed, held, serving, slow, text_of, until

from inference_server.core.errors import (
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestAbortedError,
    StepFailedError,
)
from inference_server.core.generation import ChatPrompt, GenerationRequest
from inference_server.core.options import EngineOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.plan import StepPlan
from inference_server.core.request import FinishReason
from inference_server.engine.request_stream import RequestStream

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("overlap", [False, True])
async def test_streamed_text_equals_collected_text(overlap: bool) -> None:
    prompts = [f"{n}: naïve café 😀 " * (n + 1) for n in range(20)]
    async with serving(loaded(scheduler=scheduler_of(8, 160), overlap=overlap)) as engine:
        streams = [await engine.generate(asking(p, max_tokens=150)) for p in prompts]
        streamed = [[d async for d in s] for s in streams]
        collected = await asyncio.gather(*(text_of(engine, p, max_tokens=150) for p in prompts))
        await freed(engine)
    assert ["".join(d.text for d in deltas) for deltas in streamed] == collected
    assert collected == [p.encode()[:150].decode("utf-8", "replace") for p in prompts]
    assert all([d.terminal for d in deltas].count(True) == 1 and deltas[-1].usage is not None for deltas in streamed)


async def test_more_than_64_streams_get_merged_deltas_and_the_same_text() -> None:
    prompts = [f"request {n} says " + "ab" * 40 for n in range(100)]
    async with serving(loaded(scheduler=scheduler_of(100, 8192))) as engine:
        texts = await asyncio.gather(*(text_of(engine, p) for p in prompts))
    assert texts == prompts


async def test_slow_reader_gets_one_merged_delta_and_holds_nobody_up() -> None:
    async with serving() as engine:
        slow = await engine.generate(asking("slow reader " * 5))
        assert await text_of(engine, "quick") == "quick"
        await until(lambda: engine.num_open == 0)
        deltas = [d async for d in slow]
    assert [d.text for d in deltas] == ["slow reader " * 5]
    assert deltas[0].finish_reason is FinishReason.STOP
    assert len(deltas[0].token_ids) == 61


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("overlap", [False, True])
async def test_fifty_clients_that_vanish_leave_nothing_behind(overlap: bool, streaming: bool) -> None:
    async with serving(loaded(slow(), scheduler_of(8, 8192), overlap=overlap)) as engine:

        async def client(n: int) -> None:
            stream = await engine.generate(asking(f"{n}" * 50, ignore_eos=True, max_tokens=2000))
            async with stream:
                if streaming:
                    async for _ in stream:
                        pass
                await stream.collect()

        tasks = [asyncio.create_task(client(n)) for n in range(50)]
        await until(lambda: engine.num_open == 50 and engine.snapshot.scheduler.num_active == 8)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await freed(engine)
        assert await text_of(engine, "still serving") == "still serving"


async def test_aclose_ends_iteration_and_is_idempotent() -> None:
    sink = RecordList()
    async with serving(loaded(slow()), sink=sink) as engine:
        stream = await engine.generate(asking("x" * 50, ignore_eos=True, max_tokens=2000))
        first = await anext(stream)
        await stream.aclose()
        await stream.aclose()
        assert [d async for d in stream] == []
        await freed(engine)
    assert not first.terminal
    assert [r.finish_reason for r in sink.requests] == [FinishReason.ABORT]


async def test_aclose_wakes_a_reader_who_waits() -> None:
    backend = held()
    async with serving(loaded(backend)) as engine:
        stream = await engine.generate(asking("x"))
        reader = asyncio.create_task(stream.collect())
        await asyncio.sleep(0.01)
        await stream.aclose()
        with pytest.raises(RequestAbortedError):
            await asyncio.wait_for(reader, 1)
        backend.gate.set()


async def test_aclose_after_the_terminal_delta_arrived_aborts_nothing() -> None:
    sink = RecordList()
    async with serving(sink=sink) as engine:
        stream = await engine.generate(asking("done"))
        await until(lambda: engine.num_open == 0)
        await stream.aclose()
        assert await text_of(engine, "next") == "next"
    assert [r.finish_reason for r in sink.requests] == [FinishReason.STOP, FinishReason.STOP]


async def test_a_burst_never_lets_more_than_the_queue_size_wait() -> None:
    backend = held()
    async with serving(loaded(backend, scheduler_of(4)), EngineOptions(max_queue_size=10)) as engine:
        burst = await asyncio.gather(*(engine.generate(asking("abc")) for _ in range(40)), return_exceptions=True)
        assert sum(isinstance(r, RequestStream) for r in burst) == 10
        refused = [r for r in burst if isinstance(r, OverloadedError)]
        assert len(refused) == 30
        assert all(r.retry_after_s >= 1 for r in refused)
        backend.gate.set()
        assert {(await s.collect()).text for s in burst if isinstance(s, RequestStream)} == {"abc"}
        engine.check_admission()


async def test_the_queue_holds_max_queue_size_beyond_the_rows_that_run() -> None:
    async with serving(loaded(slow(), scheduler_of(4, 8192)), EngineOptions(max_queue_size=6)) as engine:
        streams = [await engine.generate(asking("ab", ignore_eos=True, max_tokens=900)) for _ in range(4)]
        await until(lambda: engine.snapshot.scheduler.num_active == 4)
        streams += [await engine.generate(asking("ab", ignore_eos=True, max_tokens=900)) for _ in range(6)]
        with pytest.raises(OverloadedError):
            engine.check_admission()
        for stream in streams:
            await stream.aclose()
        await freed(engine)


async def test_bad_prompts_are_refused_and_give_their_place_back() -> None:
    async with serving() as engine:
        for prompt, error in [
            ("", InvalidRequestError),
            ([], InvalidRequestError),
            ([-1], InvalidRequestError),
            ([258], InvalidRequestError),
            (ChatPrompt([]), InvalidRequestError),
            (ChatPrompt([{"role": "user", "content": [{"type": "image_url"}]}]), InvalidRequestError),
            ("\ud800", InvalidRequestError),
            ("x" * 4096, PromptTooLongError),
            ("x" * 10000, PromptTooLongError),
        ]:
            with pytest.raises(error):
                await engine.generate(GenerationRequest(prompt, monotonic()))
        assert engine.num_open == 0
        assert (await (await engine.generate(GenerationRequest([0, 257, 65], monotonic()))).collect()).token_ids == [257]


async def test_queued_request_is_refused_at_its_admission_deadline_though_nothing_wakes_the_loop() -> None:
    options = EngineOptions(admission_deadline_s=0.05)
    async with serving(loaded(slow(), scheduler_of(1)), options) as engine:
        running = await engine.generate(asking("ab", ignore_eos=True, max_tokens=4000))
        await anext(running)
        with pytest.raises(OverloadedError):
            await text_of(engine, "cd")
        await running.aclose()
        await freed(engine)


async def test_tokenize_and_detokenize() -> None:
    async with serving() as engine:
        assert await engine.tokenize("hé") == [256, *"hé".encode()]
        assert await engine.tokenize("hé" * 5000, add_special_tokens=False) == list(("hé" * 5000).encode())
        assert await engine.tokenize(ChatPrompt([{"role": "user", "content": "a"}])) == [256, 97]
        assert await engine.detokenize([256, *"hé".encode()]) == "hé"
        assert await engine.detokenize([]) == ""
        with pytest.raises(InvalidRequestError):
            await engine.detokenize([1 << 40])


async def test_terminal_delta_comes_with_freed_blocks_under_load() -> None:
    async with serving(loaded(scheduler=scheduler_of(1))) as engine:

        async def client(n: int) -> None:
            last = OutputDelta()
            async for delta in await engine.generate(asking(f"client {n}")):
                last = delta
            assert last.terminal

        await asyncio.gather(*(client(n) for n in range(100)))
        assert engine.num_open == 0
        assert engine.snapshot.cache.used_blocks == 0


async def test_choices_come_in_one_stream_told_apart_by_index() -> None:
    sink = RecordList()
    async with serving(sink=sink) as engine:
        stream = await engine.generate(asking("one two", n=3), asking("three", n=2))
        texts, ends = [""] * 5, [0] * 5
        async for delta in stream:
            texts[delta.index] += delta.text
            ends[delta.index] += delta.terminal
        assert stream.exhausted
        whole = await (await engine.generate(asking("one two", n=3), asking("three", n=2))).collect_choices()
        await freed(engine)
    assert texts == [choice.text for choice in whole] == ["one two"] * 3 + ["three"] * 2
    assert ends == [1] * 5
    assert [choice.index for choice in whole] == list(range(5))
    assert len(sink.requests) == len({record.request_id for record in sink.requests}) == 10


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_read", [0, 1, 10])
async def test_leaving_a_stream_drops_all_its_choices(num_read: int, overlap: bool) -> None:
    sink = RecordList()
    async with serving(loaded(slow(), scheduler_of(3), overlap=overlap), sink=sink) as engine:
        stream = await engine.generate(asking("x" * 50, n=8, ignore_eos=True, max_tokens=500))
        for _ in range(num_read):
            await anext(stream)
        await stream.aclose()
        await stream.aclose()
        assert [delta async for delta in stream] == []
        await freed(engine)
        assert await text_of(engine, "next") == "next"
    assert [record.finish_reason for record in sink.requests] == [FinishReason.ABORT] * 8 + [FinishReason.STOP]


async def test_every_choice_takes_a_place() -> None:
    backend = held()
    async with serving(loaded(backend, scheduler_of(4)), EngineOptions(max_queue_size=10)) as engine:
        first = await engine.generate(asking("abc", n=7))
        assert engine.num_open == 7
        with pytest.raises(OverloadedError):
            await engine.generate(asking("abc", n=4))
        second = await engine.generate(asking("abc", n=3))
        for number, requests in [("n", [asking("abc", n=11)]), ("prompt", [asking("abc", n=6), asking("abc", n=5)])]:
            with pytest.raises(InvalidRequestError) as refused:
                await engine.generate(*requests)
            assert refused.value.param == number
        assert engine.num_open == 10
        backend.gate.set()
        assert [choice.text for stream in (first, second) for choice in await stream.collect_choices()] == ["abc"] * 10
        await freed(engine)
        with pytest.raises(InvalidRequestError):
            await engine.generate(asking("abc", n=3), asking(""))
        assert engine.num_open == 0


async def test_a_choice_that_fails_ends_all() -> None:
    sink = RecordList()

    def fail_late(plan: StepPlan) -> None:
        if any(request.num_output_tokens == 3 for request in plan.requests):
            raise StepFailedError("lost")

    async with serving(loaded(EchoBackend(before_launch=fail_late), scheduler_of(2)), sink=sink) as engine:
        with pytest.raises(StepFailedError):
            await (await engine.generate(asking("x" * 50, n=5, ignore_eos=True, max_tokens=500))).collect_choices()
        await freed(engine)
    assert len(sink.requests) == 5
