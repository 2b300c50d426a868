"""How much one client may ask for: token buckets of requests and of tokens, and the middleware that answers 429 before a body is read.

A client is an API key, or an address where keys are not asked for. A bucket holds one minute's worth, so that may come at once and the
rate holds from then on. A generation counts when it is let through here, whatever becomes of it; a refusal does not count. Its tokens
count once it has ended, since nobody knows them before: a bucket may fall below zero, and nothing is let through until that is made up.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from math import ceil

from starlette.types import ASGIApp, Receive, Scope, Send

from inference_server.api.errors import error_body, json_error
from inference_server.api.headers import address, is_generation
from inference_server.core.clock import Clock
from inference_server.core.records import RequestRecord, StepRecord

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Standing:
    """remaining: what a client may spend now. reset_s: until its bucket is full. wait_s: until there is something in it, 0 if now."""

    remaining: int
    reset_s: float
    wait_s: float


@dataclass(slots=True)
class _Bucket:
    level: float
    time: float


class Buckets:
    """Not for several threads. A bucket that is full again is forgotten, so memory grows with the clients of a minute only."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._per_s = per_minute / WINDOW_S
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the one that was charged longest ago in front

    def __len__(self) -> int:
        return len(self._buckets)

    def standing(self, client: str) -> Standing:
        level = self._level(self._buckets.get(client))
        return Standing(max(0, int(level)), (self.per_minute - level) / self._per_s, max(0.0, 1 - level) / self._per_s)

    def charge(self, client: str, amount: int) -> None:
        level = self._level(self._buckets.get(client))
        self._buckets[client] = _Bucket(level - amount, self._clock())
        self._buckets.move_to_end(client)
        while self._buckets and self._level(next(iter(self._buckets.values()))) >= self.per_minute:
            self._buckets.popitem(last=False)

    def _level(self, bucket: _Bucket | None) -> float:
        if bucket is None:
            return self.per_minute
        return min(float(self.per_minute), bucket.level + (self._clock() - bucket.time) * self._per_s)


class TokenSpending:
    """A `RecordSink`: what requests that have ended had computed for them, by fairness key, until someone takes it."""

    def __init__(self) -> None:
        self._spent: deque[tuple[str, int]] = deque()

    def on_step(self, record: StepRecord) -> None: ...

    def on_request(self, record: RequestRecord) -> None:
        if record.admitted_time is not None:
            self._spent.append((record.origin.fairness_key, record.prompt_tokens - record.cached_tokens + record.output_tokens))

    def take(self) -> list[tuple[str, int]]:
        """Take all of it. For one reader, whose thread need not be the engine's."""
        return [self._spent.popleft() for _ in range(len(self._spent))]


class RateLimit:
    """Refuses a generation of a client that has used up what it may; tells every other by the usual x-ratelimit headers."""

    def __init__(self, app: ASGIApp, requests: int | None, tokens: int | None, spending: TokenSpending, clock: Clock) -> None:
        """requests, tokens: a minute; None for no limit. Tokens only go with keys, which are fairness keys as well."""
        self._app = app
        self._spending = spending
        self._requests = None if requests is None else Buckets(requests, clock)
        self._tokens = None if tokens is None else Buckets(tokens, clock)
        self._kinds = [(kind, buckets) for kind, buckets in (("requests", self._requests), ("tokens", self._tokens)) if buckets is not None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_generation(scope):
            return await self._app(scope, receive, send)
        client = scope["state"].get("client_key") or address(scope)
        if self._tokens is not None:
            for spender, amount in self._spending.take():
                self._tokens.charge(spender, amount)
        wait_s, used_up = max((buckets.standing(client).wait_s, f"{buckets.per_minute} {kind}") for kind, buckets in self._kinds)
        if not wait_s and self._requests is not None:
            self._requests.charge(client, 1)
        for kind, buckets in self._kinds:
            scope["state"]["response_headers"] += _headers(kind, buckets.per_minute, buckets.standing(client))
        if not wait_s:
            return await self._app(scope, receive, send)
        scope["state"]["refusal"] = "rate_limit"
        body = error_body(429, f"more than {used_up} a minute; try again in {wait_s:.1f} s", code="rate_limit_exceeded")
        await json_error(429, body, {"Retry-After": str(max(1, ceil(wait_s)))})(scope, receive, send)


def _headers(kind: str, per_minute: int, standing: Standing) -> list[tuple[bytes, bytes]]:
    values = {"limit": f"{per_minute}", "remaining": f"{standing.remaining}", "reset": f"{standing.reset_s:.3f}s"}
    return [(f"x-ratelimit-{name}-{kind}".encode(), value.encode()) for name, value in values.items()]
