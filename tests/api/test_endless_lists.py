"""A body within the limit of bytes has room for a million list items. Refusing it may not take a million steps."""

from typing import Any

import pytest
from pydantic import ValidationError

from inference_server.api.schemas.base import RequestBody
from inference_server.api.schemas.chat import MAX_MESSAGES, ChatCompletionBody
from inference_server.api.schemas.completions import MAX_PROMPTS, CompletionBody
from inference_server.api.schemas.responses import ResponsesBody
from inference_server.api.schemas.sampling import SamplingBody
from inference_server.api.schemas.tokens import DetokenizeBody, TokenizeBody

MANY = 10_000


def chat(**message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", **message}]}


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (CompletionBody, {"prompt": [{}] * MANY}),
        (CompletionBody, {"prompt": [-1] * MANY}),
        (CompletionBody, {"prompt": [[-1] * MANY]}),
        (ChatCompletionBody, {"messages": [{}] * MANY}),
        (ChatCompletionBody, chat(content=[{}] * MANY)),
        (ChatCompletionBody, chat(tool_calls=[{}] * MANY)),
        (ChatCompletionBody, {"messages": [{"role": "user", "content": "a"}], "tools": [{}] * MANY}),
        (ResponsesBody, {"input": [{}] * MANY}),
        (ResponsesBody, {"input": [{"role": "user", "content": [{}] * MANY}]}),
        (ResponsesBody, {"input": [{"type": "reasoning", "content": [{}] * MANY}]}),
        (SamplingBody, {"stop": [1] * MANY}),
        (SamplingBody, {"stop_token_ids": [-1] * MANY}),
        (SamplingBody, {"allowed_token_ids": [-1] * MANY}),
        (SamplingBody, {"logit_bias": {str(token): "x" for token in range(MANY)}}),
        (ResponsesBody, {"input": "a", "metadata": {str(key): 1 for key in range(MANY)}}),
        (TokenizeBody, {"messages": [{}] * MANY}),
        (DetokenizeBody, {"tokens": [-1] * MANY}),
    ],
)
def test_one_bad_item_is_as_good_as_a_million(schema: type[RequestBody], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        schema.model_validate(body)
    assert refused.value.error_count() < 10


def test_prompts_are_counted_before_anything_is_made_of_them() -> None:
    assert len(CompletionBody.model_validate({"prompt": ["a"] * MAX_PROMPTS}).prompts) == MAX_PROMPTS
    for prompt in ("a", [1]):
        with pytest.raises(ValidationError, match=f"at most {MAX_PROMPTS} items"):
            CompletionBody.model_validate({"prompt": [prompt] * (MAX_PROMPTS + 1)})


@pytest.mark.parametrize(
    ("schema", "field", "item"),
    [
        (ChatCompletionBody, "messages", {"role": "user", "content": "a"}),
        (TokenizeBody, "messages", {"role": "user", "content": "a"}),
        (ResponsesBody, "input", {"role": "user", "content": "a"}),
    ],
)
def test_a_conversation_has_an_end(schema: type[RequestBody], field: str, item: Any) -> None:
    schema.model_validate({field: [item] * MAX_MESSAGES})
    with pytest.raises(ValidationError, match=f"at most {MAX_MESSAGES} items"):
        schema.model_validate({field: [item] * (MAX_MESSAGES + 1)})
