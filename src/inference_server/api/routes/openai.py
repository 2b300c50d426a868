"""`POST /v1/completions` and `/v1/chat/completions`."""

from fastapi import APIRouter, Request, Response

from inference_server.api.context import Context
from inference_server.api.formats.openai import ChatFormat, CompletionFormat
from inference_server.api.formats.running_usage import RunningUsage
from inference_server.api.formats.token_details import chat_details, completion_details
from inference_server.api.generation import generation_of, respond
from inference_server.api.json_route import GenerationRoute
from inference_server.api.schemas.answers import STREAM, ChatCompletionObject, CompletionObject
from inference_server.api.schemas.chat import ChatCompletionBody
from inference_server.api.schemas.completions import DEFAULT_MAX_TOKENS, CompletionBody

router = APIRouter(prefix="/v1", tags=["openai"], route_class=GenerationRoute)


@router.post("/completions", response_model=CompletionObject, responses=STREAM)
async def completions(body: CompletionBody, request: Request, context: Context) -> Response:
    """Continue a raw text or a list of token ids, or each of several."""
    context.check_model_name(body.model)
    generations = [generation_of(request, body, prompt, body.user, default_max_tokens=DEFAULT_MAX_TOKENS) for prompt in body.prompts]
    model, created = context.options.served_model_name, int(context.wall_clock())

    def make(id_: str) -> CompletionFormat:
        details, running = completion_details(body, context.tokenizer), RunningUsage() if body.continuous_usage else None
        return CompletionFormat(f"cmpl-{id_}", model, created, body.include_usage, body.n, details, running)

    return await respond(request, context, generations, make, body.stream)


@router.post("/chat/completions", response_model=ChatCompletionObject, responses=STREAM)
async def chat_completions(body: ChatCompletionBody, request: Request, context: Context) -> Response:
    """Answer a conversation."""
    context.check_model_name(body.model)
    generation = generation_of(request, body, body.prompt(), body.user)
    model, created = context.options.served_model_name, int(context.wall_clock())

    def make(id_: str) -> ChatFormat:
        details, running = chat_details(body, context.tokenizer), RunningUsage() if body.continuous_usage else None
        return ChatFormat(f"chatcmpl-{id_}", model, created, body.include_usage, body.n, details, running)

    return await respond(request, context, [generation], make, body.stream)
