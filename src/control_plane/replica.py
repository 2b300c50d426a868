"""`ReplicaServer`: the server in this process, without a socket, and what it tells a router.

The application, its lifespan and its draining are the server's own (`create_app`); this drives them and reads what it publishes.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from control_plane.asgi_call import ForwardedRequest, ResponseHead, call_app
from control_plane.prompt_encoder import PromptFormat
from control_plane.replica_report import ReplicaReport
from inference_server.config import Settings
from inference_server.core.chunk_hash import ChunkHasher
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.server import create_app

CHUNK_TOKENS = 64
LOAD_POLL_S = 0.05
RATE_WINDOW_S = 10

Load = Callable[[Settings, PrefixJournal], Any]


class ReplicaServer:
    """One server. All methods run on the event loop that called `start`."""

    def __init__(self, settings: Settings, salt: bytes, load: Load | None = None) -> None:
        """salt: the fleet's, at most 64 bytes. load: called instead of loading the model that the settings name."""
        self._chunk_tokens = max(CHUNK_TOKENS, settings.kv_cache_block_size)
        self._journal = PrefixJournal(ChunkHasher(salt, self._chunk_tokens))
        self._drain_timeout_s = settings.drain_timeout_s
        self._app = create_app(settings, partial(load, settings, self._journal) if load else None, self._journal)
        self._context: Any = self._app.state.context
        self._lifespan = self._app.router.lifespan_context(self._app)

    async def start(self) -> None:
        """Return once requests can be answered. Raises RuntimeError when the model cannot be loaded."""
        await self._lifespan.__aenter__()
        while (status := self._context.engine.health().status) == "loading":
            await asyncio.sleep(LOAD_POLL_S)
        self._check(status)

    async def stop(self) -> None:
        """Let the requests that are open finish, within the drain's time."""
        await self._context.engine.stop(self._drain_timeout_s)
        await self._lifespan.__aexit__(None, None, None)

    def call(self, request: ForwardedRequest) -> AsyncGenerator[ResponseHead | bytes, None]:
        """The answer of the application."""
        return call_app(self._app, request)

    def check_health(self) -> None:
        """Raises RuntimeError if the engine is dead or stalled."""
        self._check(self._context.engine.health().status)

    def prompt_format(self) -> PromptFormat:
        model = self._context.engine.model
        return PromptFormat(model.tokenizer, model.template.source, self._chunk_tokens)

    def stats(self) -> dict[str, Any]:
        """For people: the report without its changes, the state of the engine, and what it has done of late."""
        engine, seconds = self._context.engine, self._context.tracker.history()["tokens"][-RATE_WINDOW_S:]
        stats = self.report().as_stats()
        del stats["changes"]
        rate = sum(seconds) / RATE_WINDOW_S
        return {"status": engine.health().status, "running": engine.snapshot.scheduler.num_active, "tokens_per_s": rate, **stats}

    def report(self) -> ReplicaReport:
        snapshot = self._context.engine.snapshot
        scheduler, cache = snapshot.scheduler, snapshot.cache
        end, changes = self._journal.latest()
        return ReplicaReport(
            tokens=scheduler.active_tokens + scheduler.waiting_tokens,
            waiting_tokens=scheduler.waiting_tokens,
            waiting=scheduler.num_waiting,
            queue_s=scheduler.waiting_tokens / scheduler.drain_rate if scheduler.drain_rate else 0.0,
            kv_pressure=cache.utilization,
            hit_tokens=cache.hit_tokens,
            miss_tokens=cache.miss_tokens,
            end=end,
            changes=changes,
        )

    def _check(self, status: str) -> None:
        if status in ("dead", "stalled"):
            raise RuntimeError(f"the engine of this replica is {status}")
