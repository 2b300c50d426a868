"""`POST /generate`: the native route. The text goes through the model's chat template as one user message."""

from fastapi import APIRouter, Request, Response

from inference_server.api.context import Context
from inference_server.api.formats.native import NativeFormat
from inference_server.api.generation import generation_of, respond
from inference_server.api.json_route import GenerationRoute
from inference_server.api.schemas.answers import STREAM
from inference_server.api.schemas.native import GenerateBody, GenerateResponse
from inference_server.core.generation import ChatPrompt

router = APIRouter(tags=["generation"], route_class=GenerationRoute)


@router.post("/generate", response_model=GenerateResponse, responses=STREAM)
async def generate(body: GenerateBody, request: Request, context: Context) -> Response:
    """Answer one text, as JSON or as a stream of events."""
    prompt = ChatPrompt([{"role": "user", "content": body.text}], variables=body.chat_template_kwargs, param="text")
    generation = generation_of(request, body, prompt, body.session_id, session_id=body.session_id)

    def make(id_: str) -> NativeFormat:
        return NativeFormat(id_, generation.arrival_time, context.clock)

    return await respond(request, context, [generation], make, body.stream)
