"""`POST /tokenize` and `/detokenize`, as vLLM's."""

from fastapi import APIRouter, Response

from inference_server.api.context import Context
from inference_server.api.formats.base import encode
from inference_server.api.json_route import JsonRoute
from inference_server.api.schemas.tokens import DetokenizeBody, TokenizeBody

router = APIRouter(tags=["tokens"], route_class=JsonRoute)


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, context: Context) -> Response:
    """The token ids of a raw prompt, or of a conversation behind the chat template.

    Encoded here: a framework that looks at each of a million ids would hold up the event loop for seconds.
    """
    context.check_model_name(body.model)
    prompt = body.chat_prompt() if body.messages is not None else body.prompt or ""
    tokens = await context.engine.tokenize(prompt, body.add_special_tokens)
    model = context.engine.model
    assert model is not None  # or it could not have tokenised
    answer = {"count": len(tokens), "max_model_len": model.max_model_len, "tokens": tokens, "token_strs": None}
    return Response(encode(answer), media_type="application/json")


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, context: Context) -> dict[str, str]:
    """The text of token ids."""
    context.check_model_name(body.model)
    return {"prompt": await context.engine.detokenize(body.tokens)}
