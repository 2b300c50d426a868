"""How often one client may ask: a token bucket a client, and the middleware that answers 429 before a body is read.

A client is an API key, or an address where keys are not asked for. A bucket holds one minute's requests, so a client may send these
at once and is then held to the rate. A generation counts when it is let through here, whatever becomes of it; a refusal does not count.
"""

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil

from starlette.types import ASGIApp, Receive, Scope, Send

from inference_server.api.errors import error_body, json_error
from inference_server.api.headers import is_generation
from inference_server.core.clock import Clock

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Allowance:
    """Where a client stands. remaining: requests it may send now. reset_s: until all are back. wait_s: until the next, 0 if now."""

    allowed: bool
    remaining: int
    reset_s: float
    wait_s: float


@dataclass(slots=True)
class _Bucket:
    level: float
    time: float


class RateLimiter:
    """Not for several threads. Memory grows with the clients of one minute only: a bucket that rests for longer is full again."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._per_s = per_minute / WINDOW_S
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the one that has rested longest in front

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client: str) -> Allowance:
        """Take one request from the client's bucket, if there is one."""
        now = self._clock()
        bucket = self._buckets.setdefault(client, _Bucket(self.per_minute, now))
        level = min(float(self.per_minute), bucket.level + (now - bucket.time) * self._per_s)
        allowed = level >= 1
        bucket.level, bucket.time = level - allowed, now
        self._buckets.move_to_end(client)
        self._forget_rested(now)
        return Allowance(
            allowed,
            remaining=int(bucket.level),
            reset_s=(self.per_minute - bucket.level) / self._per_s,
            wait_s=max(0.0, 1 - bucket.level) / self._per_s,
        )

    def _forget_rested(self, now: float) -> None:
        while now - next(iter(self._buckets.values())).time > WINDOW_S:
            self._buckets.popitem(last=False)


class RateLimit:
    """Refuses a generation of a client that has none left; adds the usual x-ratelimit headers to every answer of the others."""

    def __init__(self, app: ASGIApp, per_minute: int, clock: Clock) -> None:
        self._app = app
        self._limiter = RateLimiter(per_minute, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_generation(scope):
            return await self._app(scope, receive, send)
        state = scope["state"]
        allowance = self._limiter.take(state.get("client_key") or _address(scope))
        state["response_headers"] += (
            (b"x-ratelimit-limit-requests", b"%d" % self._limiter.per_minute),
            (b"x-ratelimit-remaining-requests", b"%d" % allowance.remaining),
            (b"x-ratelimit-reset-requests", b"%.3fs" % allowance.reset_s),
        )
        if allowance.allowed:
            return await self._app(scope, receive, send)
        message = f"more than {self._limiter.per_minute} requests a minute; the next in {allowance.wait_s:.1f} s"
        headers = {"Retry-After": str(max(1, ceil(allowance.wait_s)))}
        await json_error(429, error_body(429, message, code="rate_limit_exceeded"), headers)(scope, receive, send)


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""
