"""`GET /scheduler/stats`, `/cache/stats` and `/metrics`: read-only views of the engine's snapshot and records."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from inference_server.api.context import Context

router = APIRouter(tags=["stats"])


@router.get("/scheduler/stats")
async def scheduler_stats(context: Context) -> dict[str, Any]:
    """Queue, active rows, KV pressure, the clients that have had the most service, and latency percentiles of the last minute."""
    snapshot = context.engine.snapshot
    scheduler, cache = snapshot.scheduler, snapshot.cache
    return {
        "step_id": snapshot.step_id,
        "queue_depth": scheduler.num_waiting,
        "waiting_tokens": scheduler.waiting_tokens,
        "waiting_by_reason": scheduler.waiting_by_reason,
        "active_rows": scheduler.num_active,
        "prefilling": scheduler.num_prefilling,
        "running": scheduler.num_running,
        "admitted_total": scheduler.admitted_total,
        "rejected_total": context.prometheus.rejected_total,
        "preemptions_total": scheduler.preemptions_total,
        "kv_pressure": cache.utilization,
        "free_blocks": cache.free_blocks,
        "active_kv_tokens": scheduler.active_tokens,
        "queue_tokens_per_s": scheduler.drain_rate,
        "fairness": [asdict(key) for key in scheduler.fairness],
        **context.tracker.summary(),
    }


@router.get("/cache/stats")
async def cache_stats(context: Context) -> dict[str, Any]:
    """The block pool and the prefix cache. used: held by running requests, pinned: those of them that are cached too; cached: reusable."""
    cache = context.engine.snapshot.cache
    looked_up = cache.hit_tokens + cache.miss_tokens
    return {
        "total_blocks": cache.total_blocks,
        "used_blocks": cache.used_blocks,
        "pinned_blocks": cache.pinned_blocks,
        "cached_blocks": cache.cached_blocks,
        "free_blocks": cache.free_blocks,
        "utilization": cache.utilization,
        "total_bytes": cache.total_bytes,
        "used_bytes": cache.used_bytes,
        "cached_bytes": cache.cached_bytes,
        "hit_tokens": cache.hit_tokens,
        "miss_tokens": cache.miss_tokens,
        "evicted_blocks": cache.evicted_blocks,
        "hit_rate": cache.hit_tokens / looked_up if looked_up else 0.0,
    }


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, context: Context) -> Response:
    """Prometheus exposition."""
    body, content_type = context.prometheus.render(context.engine.snapshot, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})
