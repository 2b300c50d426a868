"""`GET /v1/models`, `/v1/models/{id}` and `/version`."""

from typing import Any

from fastapi import APIRouter

from inference_server import __version__
from inference_server.api.context import ApiContext, Context

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(context: Context) -> dict[str, Any]:
    """The one model this server serves."""
    return {"object": "list", "data": [_card(context)]}


@router.get("/v1/models/{model_id:path}")
async def get_model(model_id: str, context: Context) -> dict[str, Any]:
    """The card of the served model."""
    context.check_model_name(model_id)
    return _card(context)


@router.get("/version")
async def version() -> dict[str, str]:
    """The server's version."""
    return {"version": __version__}


def _card(context: ApiContext) -> dict[str, Any]:
    model = context.engine.model
    name = context.options.served_model_name
    return {
        "id": name,
        "object": "model",
        "created": context.started_at,
        "owned_by": "inference-server",
        "root": name,
        "parent": None,
        "max_model_len": None if model is None else model.max_model_len,
    }
