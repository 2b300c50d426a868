"""`LoadSimulator`: starts, watches and ends one simulation at a time. Everything runs on the event loop that called `start`."""

import asyncio
import logging
import time
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import httpx

from inference_server.core.clock import Clock
from inference_server.simulator.options import SimulationOptions
from inference_server.simulator.prompts import PromptStream
from inference_server.simulator.tally import Tally
from inference_server.simulator.user import VirtualUser

TIMEOUT = httpx.Timeout(60.0, read=None)  # a queued request may be silent for long; the server ends it

logger = logging.getLogger(__name__)


class SimulationRunningError(Exception):
    """There is a simulation already."""


@dataclass(slots=True)
class _Simulation:
    """Times by the clock. ended: None while it runs."""

    options: SimulationOptions
    tally: Tally
    task: asyncio.Task[None]
    started: float
    ended: float | None = None


class LoadSimulator:
    """The latest simulation stays readable after its end, until the next one starts."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._current: _Simulation | None = None

    @property
    def running(self) -> bool:
        return self._current is not None and self._current.ended is None

    def start(self, options: SimulationOptions, base_url: str, headers: dict[str, str]) -> None:
        """Let the users loose on the server at `base_url`; each of their requests carries `headers`.

        Raises SimulationRunningError while there is a simulation.
        """
        if self.running:
            raise SimulationRunningError
        tally = Tally()
        task = asyncio.create_task(self._run(options, tally, base_url, headers))
        self._current = _Simulation(options, tally, task, self._clock())
        task.add_done_callback(self._on_end)

    async def stop(self) -> None:
        """End the simulation, if there is one: its requests are cut off, and the server frees what they held."""
        if self._current is not None:
            self._current.task.cancel()
            await asyncio.wait((self._current.task,))

    def status(self) -> dict[str, Any]:
        """Ready for JSON: whether one runs, and what the latest one did."""
        if self._current is None:
            return {"running": False, "options": None, "elapsed_s": 0.0, **Tally().summary()}
        current = self._current
        elapsed_s = (self._clock() if current.ended is None else current.ended) - current.started
        options = asdict(current.options) | {"weights": {bucket.value: weight for bucket, weight in current.options.weights.items()}}
        return {"running": self.running, "options": options, "elapsed_s": round(elapsed_s, 3), **current.tally.summary()}

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Also of a task that was cancelled before it had begun."""
        if self._current is not None and self._current.task is task:
            self._current.ended = self._clock()

    async def _run(self, options: SimulationOptions, tally: Tally, base_url: str, headers: dict[str, str]) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=options.num_users)
        logger.info("simulation of %d users begins", options.num_users)
        try:
            async with (
                asyncio.timeout(options.duration_s),
                httpx.AsyncClient(base_url=base_url, headers=headers, timeout=TIMEOUT, limits=limits, trust_env=False) as client,
                asyncio.TaskGroup() as users,
            ):
                starts = Random(f"{options.seed}/starts")
                for number in range(options.num_users):
                    prompts = PromptStream(options, number)
                    user = VirtualUser(f"sim-{options.seed}-{number}", prompts, client, tally, self._clock)
                    users.create_task(user.run(starts.uniform(0, options.think_time_s)))
        except TimeoutError:
            logger.info("simulation ends: its time is over")
        except Exception:
            logger.exception("simulation failed")
