"""`instructor`: a pydantic model by tools and by a schema, sync and async, without a second try."""

import asyncio
from typing import Any

import openai
import pytest
from questions import DESCRIBE, LONG, Place

instructor = pytest.importorskip("instructor")
pytestmark = pytest.mark.clients

REQUEST: dict[str, Any] = {
    **{"model": "embedded", "messages": [{"role": "user", "content": DESCRIBE}], "response_model": Place},
    **{"max_retries": 0, "temperature": 0, "max_tokens": LONG},
}


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_a_model_of_pydantic(url: str, mode: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        place = instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions.create(**REQUEST)
    assert isinstance(place, Place)


def test_async(url: str) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await instructor.from_openai(client).chat.completions.create(**REQUEST)

    assert isinstance(asyncio.run(ask()), Place)
