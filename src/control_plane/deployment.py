"""The fleet as an application of Ray Serve: a thin ingress in front of replicas, each a whole server.

Placement, health, restarts, scaling and the HTTP proxy are Serve's; which replica a request goes to is `PrefixRequestRouter`'s.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.exceptions import ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from control_plane.asgi_call import ForwardedRequest, ResponseHead
from control_plane.fleet_metrics import render
from control_plane.forwarding import FleetBusyError, Forwarder, ReplicaLostError
from control_plane.options import FleetOptions
from control_plane.prompt_encoder import PromptEncoder, PromptFormat
from control_plane.replica import Load, ReplicaServer
from inference_server.config import Settings

SALT_BYTES = 32
INLINE_BODY_BYTES = 16 * 1024  # a larger one is tokenised in a worker thread
INGRESS_MAX_ONGOING = 10_000
SHUTDOWN_S = 25.0  # as docs/operations.md says: the step that runs, slow readers, what is written last

# What a replica is asked for where the fleet has a route of its own. Replicas check API keys: a client that they refuse, the fleet refuses.
ASKED_FOR: Mapping[str, str] = {"/fleet": "/static/fleet.html", "/fleet/stats": "/scheduler/stats", "/fleet/metrics": "/metrics"}
FIGURES = frozenset({"/fleet/stats", "/fleet/metrics"})
LOST = (RayActorError, WorkerCrashedError, ObjectLostError)  # how a replica's death looks to its callers

logger = logging.getLogger(__name__)


class Replica:
    """A server as a deployment. Serve calls every method."""

    async def __init__(self, settings: Settings, salt: bytes, load: Load | None = None) -> None:  # type: ignore[misc]  # Serve awaits it
        self._server = ReplicaServer(settings, salt, load)
        await self._server.start()

    async def handle(self, request: ForwardedRequest) -> AsyncGenerator[ResponseHead | bytes, None]:
        async with aclosing(self._server.call(request)) as items:
            async for item in items:
                yield item

    async def prompt_format(self) -> PromptFormat:
        return self._server.prompt_format()

    async def stats(self) -> dict[str, Any]:
        return {"replica": serve.get_replica_context().replica_id.unique_id, **self._server.stats()}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        report = self._server.report()
        return {"queue_s": report.queue_s, "kv_pressure": report.kv_pressure}

    def record_routing_stats(self) -> dict[str, Any]:
        return self._server.report().as_stats()

    def check_health(self) -> None:
        self._server.check_health()

    async def __del__(self) -> None:
        await self._server.stop()


class Ingress:
    """Reads a request once, finds out what a router needs to know, and hands bytes on."""

    async def __init__(self, replicas: DeploymentHandle, salt: bytes, max_body_bytes: int) -> None:  # type: ignore[misc]
        self._replicas = replicas
        self._handle = replicas.options(stream=True).handle
        self._max_body_bytes = max_body_bytes
        self._forwarder = Forwarder(self._call)
        self._encoder = PromptEncoder(await replicas.prompt_format.remote(), salt)

    async def __call__(self, request: Request) -> Response:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        body = await self._body(request)
        if body is None:
            message = f"the body is larger than {self._max_body_bytes} bytes"
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": "request_too_large"}
            return JSONResponse({"error": error}, 413)
        forwarded = await self._forwarded(request, ASKED_FOR.get(path, path), body)
        head, pieces = await self._forwarder.answer(forwarded)
        if path in FIGURES and head.status == 200:
            return await self._own_route(path)
        response = StreamingResponse(pieces, head.status)
        # Serve's proxy has given the request an X-Request-Id if its client had not, and puts it into the answer.
        response.raw_headers = [(name, value) for name, value in head.headers if name != b"x-request-id"]
        return response

    async def _forwarded(self, request: Request, path: str, body: bytes) -> ForwardedRequest:
        if len(body) > INLINE_BODY_BYTES:
            key = await asyncio.to_thread(self._encoder.key, path, body)
        else:
            key = self._encoder.key(path, body)
        client = (request.client.host, request.client.port) if request.client else None
        return ForwardedRequest(request.method, path, request.scope["query_string"], tuple(request.headers.raw), body, client, key)

    async def _own_route(self, path: str) -> Response:
        stats = await self._stats()
        if path == "/fleet/stats":
            return JSONResponse(stats)
        exposition, content_type = render(stats)
        return Response(exposition, headers={"Content-Type": content_type})

    async def _call(self, request: ForwardedRequest) -> AsyncGenerator[ResponseHead | bytes, None]:
        """Raises ReplicaLostError and FleetBusyError. A reader that stops cancels the call."""
        response = self._handle.remote(request)
        ended = False
        try:
            async for item in response:
                yield item
            ended = True
        except LOST as error:
            ended = True
            raise ReplicaLostError from error
        except BackPressureError as error:
            ended = True
            raise FleetBusyError from error
        finally:
            if not ended:
                response.cancel()

    async def _body(self, request: Request) -> bytes | None:
        """The whole body; None if it is too large."""
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_body_bytes:
                return None
            parts.append(part)
        return b"".join(parts)

    async def _stats(self) -> dict[str, Any]:
        answers = await self._replicas.broadcast("stats").results_async(return_exceptions=True)
        forwarder = self._forwarder
        counts = {"retries": forwarder.retries_total, "broken": forwarder.broken_total, "refused": forwarder.refused_total}
        return {"replicas": answered(answers), **counts}


def answered(answers: Sequence[dict[str, Any] | Exception]) -> list[dict[str, Any]]:
    """The statistics of the replicas that gave them. Those that died meanwhile are left out; those that failed too, and are logged."""
    for error in answers:
        if isinstance(error, Exception) and not isinstance(error, LOST):
            logger.error("a replica cannot say how it is", exc_info=error)
    return [answer for answer in answers if not isinstance(answer, Exception)]


def fleet(settings: Settings, options: FleetOptions, load: Load | None = None) -> serve.Application:
    """The application to run. load: see `ReplicaServer`."""
    salt = secrets.token_bytes(SALT_BYTES)
    quiet = {"enable_access_log": False}  # a server logs its requests itself
    router = RequestRouterConfig(
        request_router_class="control_plane.serve_router:PrefixRequestRouter",
        request_router_kwargs={
            "policy": options.policy,
            "beta": options.beta,
            "quiet_tokens": options.quiet_tokens,
            "index_capacity": options.index_capacity,
        },
        request_routing_stats_period_s=options.report_s,
    )
    replicas = serve.deployment(Replica).options(
        name="Replica",
        **_number(options),
        # More than a replica takes in: what is too much it refuses itself, with its own Retry-After.
        max_ongoing_requests=2 * (settings.max_batch_size + settings.max_queue_size),
        max_queued_requests=settings.max_queue_size,
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        request_router_config=router,
        logging_config=quiet,
        graceful_shutdown_timeout_s=settings.drain_timeout_s + SHUTDOWN_S,
    )
    ingress = serve.deployment(Ingress).options(
        name="Ingress", max_ongoing_requests=INGRESS_MAX_ONGOING, ray_actor_options={"num_cpus": 0}, logging_config=quiet
    )
    return ingress.bind(replicas.bind(settings, salt, load), salt, settings.api_options().max_body_bytes)


def _number(options: FleetOptions) -> dict[str, Any]:
    """The options that set how many replicas there are: a fixed number, or limits and aims for Serve's autoscaler."""
    if options.max_replicas <= options.replicas:
        return {"num_replicas": options.replicas}
    aims = {"queue_s": options.target_queue_s, "kv_pressure": options.target_kv_pressure}
    scaling = AutoscalingConfig(
        min_replicas=options.replicas,
        max_replicas=options.max_replicas,
        upscale_delay_s=options.scale_up_s,
        downscale_delay_s=options.scale_down_s,
        policy=AutoscalingPolicy(policy_function="control_plane.scaling:ScaleByReports", policy_kwargs=aims),
    )
    return {"autoscaling_config": scaling}


def build(args: Mapping[str, Any]) -> serve.Application:
    """For a Serve config file: `args` are the fields of `FleetOptions`; the server's settings come from the environment."""
    return fleet(Settings.from_cli(), FleetOptions(**args))
