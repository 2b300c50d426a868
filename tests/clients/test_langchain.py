"""`langchain-openai`: whole, streamed, in batches, and as a pydantic model."""

import pytest
from questions import ANSWER, DESCRIBE, LONG, QUESTION, SHORT, Place

langchain_openai = pytest.importorskip("langchain_openai")
pytestmark = pytest.mark.clients


@pytest.fixture
def chat(url: str) -> "langchain_openai.ChatOpenAI":
    return langchain_openai.ChatOpenAI(base_url=url, api_key="none", model="embedded", temperature=0, max_tokens=SHORT, max_retries=0)


def test_streams_and_batches_say_what_one_call_says(chat: "langchain_openai.ChatOpenAI") -> None:
    whole = chat.invoke(QUESTION)
    assert ANSWER in whole.content
    first, *rest = chat.stream(QUESTION, stream_usage=True)
    streamed = sum(rest, first)
    assert streamed.content == whole.content
    assert streamed.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"] > 0
    assert [message.content for message in chat.batch([QUESTION] * 3)] == [whole.content] * 3


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat: "langchain_openai.ChatOpenAI", method: str) -> None:
    place = chat.with_structured_output(Place, method=method).invoke(DESCRIBE, max_tokens=LONG)
    assert isinstance(place, Place)


def test_responses(chat: "langchain_openai.ChatOpenAI") -> None:
    chat = chat.model_copy(update={"use_responses_api": True})
    whole = chat.invoke(QUESTION)
    assert ANSWER in whole.text
    first, *rest = chat.stream(QUESTION)
    assert sum(rest, first).text == whole.text
