"""`POST /generate`: the native route. The text goes through the model's chat template as one user message."""

from fastapi import APIRouter, Request, Response

from inference_server.api.context import Context
from inference_server.api.fairness import fairness_key
from inference_server.api.formats.native import NativeFormat
from inference_server.api.generation import respond
from inference_server.api.schemas.native import GenerateBody, GenerateResponse
from inference_server.core.generation import ChatPrompt, GenerationRequest

router = APIRouter(tags=["generation"])


@router.post("/generate", response_model=GenerateResponse)
async def generate(body: GenerateBody, request: Request, context: Context) -> Response:
    """Answer one text, as JSON or as a stream of events."""
    arrival_time: float = request.state.arrival_time
    generation = GenerationRequest(
        prompt=ChatPrompt([{"role": "user", "content": body.text}], variables=body.chat_template_kwargs, param="text"),
        arrival_time=arrival_time,
        client_id=request.state.client_id,
        session_id=body.session_id,
        fairness_key=fairness_key(request, body.session_id),
        **body.sampling_fields(),
    )
    return await respond(request, context, [generation], lambda id_: NativeFormat(id_, arrival_time, context.clock), body.stream)
