"""`VirtualUser`: asks, reads the stream of the answer, thinks, and asks on, until cancelled.

`/generate` takes one text, so a later turn sends the conversation so far; the server finds its beginning in the prefix cache. A user
who is refused waits as long as the server says and asks the same again.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from inference_server.core.clock import Clock
from inference_server.simulator.prompts import PromptStream, Turn
from inference_server.simulator.tally import Tally

_REFUSALS = (429, 503)
_LONGEST_RETRY_S = 30.0
_AFTER_FAILURE_S = 1.0


class VirtualUser:
    """session_id: the same for all that this user ever asks."""

    def __init__(self, session_id: str, prompts: PromptStream, client: httpx.AsyncClient, tally: Tally, clock: Clock) -> None:
        self._session_id = session_id
        self._prompts = prompts
        self._client = client
        self._tally = tally
        self._clock = clock

    async def run(self, first_pause_s: float) -> None:
        """Never returns. first_pause_s: so that users do not all begin at once."""
        await asyncio.sleep(first_pause_s)
        while True:
            await self._converse(self._prompts.conversation())

    async def _converse(self, turns: list[Turn]) -> None:
        """A turn that fails ends the conversation: what follows would make no sense."""
        history = ""
        for turn in turns:
            text = f"{history}{turn.text}"
            answer = await self._ask(text, turn)
            if answer is None:
                await asyncio.sleep(_AFTER_FAILURE_S)
                return
            history = f"{text}\n\n{answer}\n\n"
            await asyncio.sleep(turn.think_s)

    async def _ask(self, text: str, turn: Turn) -> str | None:
        """The answer; None when there will be none."""
        tally = self._tally
        tally.started += 1
        tally.by_bucket[turn.bucket] += 1
        tally.in_flight += 1
        try:
            while isinstance(outcome := await self._try(text, turn), float):
                tally.rejected += 1
                await asyncio.sleep(outcome)
        except (httpx.HTTPError, ValueError) as error:
            outcome = None
            tally.last_error = str(error)[:200] or type(error).__name__
        finally:
            tally.in_flight -= 1
        if outcome is None:
            tally.failed += 1
        else:
            tally.completed += 1
        return outcome

    async def _try(self, text: str, turn: Turn) -> str | float | None:
        """One request: its answer, the seconds to wait after a refusal, or None. Raises httpx.HTTPError and ValueError."""
        body = {
            "text": text,
            "max_tokens": turn.max_tokens,
            "seed": turn.sampling_seed,
            "session_id": self._session_id,
            "stream": True,
        }
        sent = self._clock()
        async with self._client.stream("POST", "/generate", json=body) as response:
            if response.status_code in _REFUSALS:
                return min(float(response.headers.get("retry-after", 1)), _LONGEST_RETRY_S)
            if response.status_code != 200:
                self._tally.last_error = _reason(await response.aread())[:200]
                return None
            return await self._read(response, sent)

    async def _read(self, response: httpx.Response, sent: float) -> str | None:
        answer: str = ""
        first = True
        async for event in _events(response):
            if "error" in event:
                self._tally.last_error = str(event["error"].get("message", ""))[:200]
                return None
            if first:
                self._tally.ttft_s.append(self._clock() - sent)
                first = False
            answer += str(event.get("text", ""))
            if event.get("done"):
                self._tally.tokens += event["tokens_generated"]
                self._tally.cached_tokens += event["cache_hit_tokens"]
                return answer
        raise ValueError("the stream ended before its last event")


def _reason(body: bytes) -> str:
    """The message of an error, whose shape is that of every route; all of it, should it be another's."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
