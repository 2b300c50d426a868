"""`POST /tokenize` and `/detokenize`, as vLLM's."""

from typing import Any

from fastapi import APIRouter

from inference_server.api.context import Context
from inference_server.api.schemas.chat import chat_prompt
from inference_server.api.schemas.tokens import DetokenizeBody, TokenizeBody

router = APIRouter(tags=["tokens"])


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, context: Context) -> dict[str, Any]:
    """The token ids of a raw prompt, or of a conversation behind the chat template."""
    context.check_model_name(body.model)
    prompt = chat_prompt(body.messages) if body.messages is not None else body.prompt or ""
    tokens = await context.engine.tokenize(prompt, body.add_special_tokens)
    model = context.engine.model
    assert model is not None  # or it could not have tokenised
    return {"count": len(tokens), "max_model_len": model.max_model_len, "tokens": tokens, "token_strs": None}


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, context: Context) -> dict[str, str]:
    """The text of token ids."""
    context.check_model_name(body.model)
    return {"prompt": await context.engine.detokenize(body.tokens)}
