"""Liveness and readiness. Neither waits for the engine."""

from typing import Any

from fastapi import APIRouter

from inference_server.api.context import Context
from inference_server.core.errors import NotReadyError, OverloadedError

router = APIRouter(tags=["health"])


@router.get("/health/live")
@router.get("/health")
async def health(context: Context) -> dict[str, Any]:
    """Always 200 while the process is up; the body tells what the engine does."""
    health = context.engine.health()
    return {"status": health.status, "last_step_age_s": health.last_step_age_s}


@router.get("/health/ready")
@router.get("/ready")
async def ready(context: Context) -> dict[str, str]:
    """503 until the model is loaded, while the queue is full and while draining; else 200."""
    try:
        context.engine.check_admission()
    except OverloadedError as error:
        raise NotReadyError(error.message, retry_after_s=error.retry_after_s) from error
    return {"status": "ready"}
