"""`POST /v1/completions` and `/v1/chat/completions`."""

from functools import partial

from fastapi import APIRouter, Request, Response

from inference_server.api.context import Context
from inference_server.api.fairness import fairness_key
from inference_server.api.formats.openai import ChatFormat, CompletionFormat
from inference_server.api.formats.token_details import chat_details, completion_details
from inference_server.api.generation import respond
from inference_server.api.schemas.chat import ChatCompletionBody
from inference_server.api.schemas.completions import DEFAULT_MAX_TOKENS, CompletionBody
from inference_server.core.generation import GenerationRequest

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/completions", response_class=Response)
async def completions(body: CompletionBody, request: Request, context: Context) -> Response:
    """Continue a raw text or a list of token ids, or each of several."""
    context.check_model_name(body.model)
    generation = partial(
        GenerationRequest,
        arrival_time=request.state.arrival_time,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        client_id=request.state.client_id,
        trace_id=request.state.trace_id,
        fairness_key=fairness_key(request, body.user),
        **body.sampling_fields(),
    )
    generations = [generation(prompt=prompt) for prompt in body.prompts]
    model, created = context.options.served_model_name, int(context.wall_clock())

    def make(id_: str) -> CompletionFormat:
        return CompletionFormat(f"cmpl-{id_}", model, created, body.include_usage, body.n, completion_details(body, context.tokenizer))

    return await respond(request, context, generations, make, body.stream)


@router.post("/chat/completions", response_class=Response)
async def chat_completions(body: ChatCompletionBody, request: Request, context: Context) -> Response:
    """Answer a conversation."""
    context.check_model_name(body.model)
    generation = GenerationRequest(
        prompt=body.prompt(),
        arrival_time=request.state.arrival_time,
        client_id=request.state.client_id,
        trace_id=request.state.trace_id,
        fairness_key=fairness_key(request, body.user),
        **body.sampling_fields(),
    )
    model, created = context.options.served_model_name, int(context.wall_clock())

    def make(id_: str) -> ChatFormat:
        return ChatFormat(f"chatcmpl-{id_}", model, created, body.include_usage, body.n, chat_details(body, context.tokenizer))

    return await respond(request, context, [generation], make, body.stream)
