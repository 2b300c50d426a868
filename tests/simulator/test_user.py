"""One virtual user against a scripted transport."""

import asyncio
import json
from collections.abc import Callable

import httpx

from inference_server.simulator.options import Bucket, SimulationOptions
from inference_server.simulator.prompts import PromptStream
from inference_server.simulator.tally import Tally
from inference_server.simulator.user import VirtualUser

OPTIONS = SimulationOptions(weights={Bucket.SHORT: 1.0}, think_time_s=0, max_turns=3, seed=5)
TOTALS = {"text": "", "done": True, "tokens_generated": 3, "cache_hit_tokens": 2}


def answering(*events: object) -> httpx.Response:
    return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events) + ": ping\n\ndata: [DONE]\n\n")


def talk(answer: Callable[[int], httpx.Response], num_requests: int) -> tuple[list[dict[str, object]], Tally]:
    """The bodies of a user's first requests, and the tally once the last of them was answered."""
    bodies: list[dict[str, object]] = []
    tally = Tally()

    async def respond(request: httpx.Request) -> httpx.Response:
        if len(bodies) == num_requests:
            await asyncio.sleep(3600)
        bodies.append(json.loads(request.content))
        return answer(len(bodies))

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url="http://server") as client:
            user = VirtualUser("sim-5-0", PromptStream(OPTIONS, 0), client, tally, lambda: 0.0)
            task = asyncio.create_task(user.run(0))
            while tally.completed + tally.failed + tally.rejected < num_requests:
                await asyncio.sleep(0)
            task.cancel()

    asyncio.run(run())
    return bodies, tally


def test_a_later_turn_repeats_the_conversation_so_far() -> None:
    bodies, tally = talk(lambda number: answering({"text": f"No. {number}"}, TOTALS), 12)
    stream = PromptStream(OPTIONS, 0)
    expected: list[str] = []
    while len(expected) < 12:
        history = ""
        for turn in stream.conversation():
            expected.append(f"{history}{turn.text}")
            history = f"{expected[-1]}\n\nNo. {len(expected)}\n\n"
    assert [body["text"] for body in bodies] == expected[:12]
    assert {body["session_id"] for body in bodies} == {"sim-5-0"}
    assert (tally.completed, tally.tokens, tally.cached_tokens) == (12, 36, 24)


def test_a_refused_turn_is_asked_again_unchanged() -> None:
    bodies, tally = talk(lambda number: answering(TOTALS) if number > 2 else httpx.Response(429, headers={"Retry-After": "0"}), 3)
    assert bodies[0] == bodies[1] == bodies[2]
    assert (tally.rejected, tally.completed, tally.failed, tally.started) == (2, 1, 0, 1)


def test_an_error_inside_a_stream_and_a_stream_that_breaks_off_are_failures() -> None:
    _, tally = talk(lambda _: answering({"text": "a"}, {"error": {"message": "the engine has failed"}}), 1)
    assert (tally.failed, tally.completed, tally.last_error) == (1, 0, "the engine has failed")
    _, tally = talk(lambda _: answering({"text": "a"}), 1)
    assert (tally.failed, tally.completed) == (1, 0)
    assert "before its last event" in tally.last_error
