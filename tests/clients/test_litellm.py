"""`litellm`: chats, completions and responses, streamed and not."""

import asyncio
from typing import Any

import pytest
from questions import ANSWER, DESCRIBE, LONG, QUESTION, SHORT, Place

litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.clients

MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def target(url: str) -> dict[str, Any]:
    return {"model": "openai/embedded", "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": SHORT, "num_retries": 0}


def test_a_chat_whole_streamed_and_awaited(target: dict[str, Any]) -> None:
    whole = litellm.completion(messages=MESSAGES, **target)
    text = whole.choices[0].message.content
    assert ANSWER in text
    chunks = list(litellm.completion(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **target))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens > 0
    assert asyncio.run(litellm.acompletion(messages=MESSAGES, **target)).choices[0].message.content == text


def test_an_answer_that_fits_a_model(target: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": DESCRIBE}]
    answer = litellm.completion(messages=messages, response_format=Place, **target | {"max_tokens": LONG})
    Place.model_validate_json(answer.choices[0].message.content)


def test_completions_and_responses(target: dict[str, Any]) -> None:
    completion = litellm.text_completion(prompt=QUESTION, **target | {"model": "text-completion-openai/embedded"})
    assert completion.choices[0].text
    without_limit = {key: value for key, value in target.items() if key != "max_tokens"}
    assert ANSWER in litellm.responses(input=QUESTION, max_output_tokens=SHORT, **without_limit).output_text


def test_errors_keep_their_status(target: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="suffix"):
        litellm.completion(messages=MESSAGES, extra_body={"suffix": "end"}, **target)
