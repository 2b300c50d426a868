"""`POST /v1/responses`, without a memory: nothing is stored, whatever `store` says, and the answer says so."""

from typing import Any

from fastapi import APIRouter, Request, Response

from inference_server.api.context import Context
from inference_server.api.formats.responses import ResponsesFormat
from inference_server.api.generation import generation_of, respond
from inference_server.api.json_route import GenerationRoute
from inference_server.api.schemas.answers import STREAM, ResponseObject
from inference_server.api.schemas.responses import ResponsesBody
from inference_server.api.schemas.structured import TextFormat
from inference_server.api.schemas.tools import NamedChoice, ToolChoice

router = APIRouter(prefix="/v1", tags=["openai"], route_class=GenerationRoute)


@router.post("/responses", response_model=ResponseObject, responses=STREAM)
async def responses(body: ResponsesBody, request: Request, context: Context) -> Response:
    """Answer a text, or a conversation as items."""
    context.check_model_name(body.model)
    generation = generation_of(request, body, body.prompt(), body.user)
    known = _known(body, context.options.served_model_name, int(context.wall_clock()))
    return await respond(request, context, [generation], lambda id_: ResponsesFormat(id_, known), body.stream)


def _known(body: ResponsesBody, model: str, created: int) -> dict[str, Any]:
    """The fields of a response that repeat the request. A sampling value of null is the model's default."""
    return {
        "created_at": created,
        "model": model,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": {"format": _format(body.text.format)},
        "tool_choice": _choice(body.tool_choice),
        "tools": [{"type": "function", **tool.function.model_dump()} for tool in body.tools],
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user or None,
    }


def _format(text_format: TextFormat | None) -> dict[str, Any]:
    if text_format is None or text_format.type == "text":
        return {"type": "text"}
    return text_format.model_dump(by_alias=True) if text_format.type == "json_schema" else {"type": text_format.type}


def _choice(choice: ToolChoice) -> Any:
    return {"type": "function", "name": choice.function.name} if isinstance(choice, NamedChoice) else choice
