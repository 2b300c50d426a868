"""Every byte of a stream, and that a stream says what the whole answer says. The checks, for any server, are in `wire.py`."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import httpx
import pytest
from api_server import Start
from dialect_model import ScriptedBackend, load_dialect
from wire import CHAT, NATIVE, RESPONSES, TEXT, Said, parse_sse, read_choices, streamed, whole
from wire_prompts import prompt_of, requests

NUM_PROMPTS = 200
FUNCTION = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
THOUGHT, CALL = "<|channel>thought\nHm. 🙂<channel|>", '<|tool_call>call:get_weather{city:<|"|>東京<|"|>}<tool_call|>'
WEATHER = ("get_weather", '{"city":"東京"}')


def test_streams_say_what_whole_answers_say(client: httpx.Client) -> None:
    asked = list(requests(Random(7), NUM_PROMPTS, max_tokens=40))
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda request: (streamed(client, *request), whole(client, *request)), asked)
    ends = set()
    for (path, body), (stream, answer) in zip(asked, answers, strict=True):
        counts = stream.counts or answer.counts
        assert (stream.choices, counts) == (answer.choices, answer.counts), (path, body)
        ends.add((path, answer.choices[0].end))
    assert ends == {(path, end) for path in (CHAT, TEXT, NATIVE) for end in ("stop", "length")} | {
        (RESPONSES, "completed"),
        (RESPONSES, "max_output_tokens"),
    }


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_thoughts_text_and_calls(start: Start, path: str) -> None:
    tool = {"type": "function", "function": FUNCTION} if path == CHAT else {"type": "function", **FUNCTION}
    body = prompt_of(path, "Hi") | {"tools": [tool]}
    with start(partial(ScriptedBackend, answer=THOUGHT + "I look." + CALL * 2), load_dialect) as client:
        stream = streamed(client, path, body)
        assert stream.choices == whole(client, path, body).choices
    assert stream.choices == (Said("I look.", "tool_calls" if path == CHAT else "completed", "Hm. 🙂", (WEATHER, WEATHER)),)


def test_choices_of_several_prompts(client: httpx.Client) -> None:
    body: dict[str, Any] = {"prompt": ["eins zwei", "🦊"], "n": 2, "stop": " ", "stream_options": {"include_usage": True}}
    assert streamed(client, TEXT, body) == whole(client, TEXT, body)
    assert [said.text for said in whole(client, TEXT, body).choices] == ["eins", "eins", "🦊", "🦊"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_counts_in_every_chunk(client: httpx.Client, path: str) -> None:
    """As in vLLM: they come beside the usage at the end, and count each choice by itself."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = prompt_of(path, "abc") | {"n": 2, "stream": True, "stream_options": options}
    raw = client.post(path, json=body).content
    answer = read_choices(raw, path == CHAT, body)
    *chunks, last = parse_sse(raw)
    for index in (0, 1):
        usages = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == sorted(counts)
        assert 1 <= counts[0] <= counts[-1] == 4  # three letters and the end of text
        assert all(usage["prompt_tokens"] == 4 == usage["total_tokens"] - usage["completion_tokens"] for usage in usages)
    assert answer.counts == (4, 8) == (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"])
    alone = client.post(path, json={**body, "stream_options": {"continuous_usage_stats": True}}).content
    assert b'"usage"' not in alone
