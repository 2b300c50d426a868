"""Log-probabilities, token ids and echoes on the wire, whole and streamed; the openai client parses them."""

from typing import Any

import httpx
import openai
import pytest
from echo_model import MODEL_NAME
from wire import parse_sse

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "é b"}]
E_ACUTE, SPACE, B, END = [0xC3, 0xA9], 0x20, 0x62, 257


def answer(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The streamed events of the first choice."""
    response = client.post(path, json={**body, "stream": True})
    return [choice for event in parse_sse(response.content) for choice in event["choices"] if choice["index"] == 0]


def test_chat_logprobs_name_every_token_with_its_bytes(client: httpx.Client) -> None:
    choice = answer(client, CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 2})
    content = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[b] for b in (*E_ACUTE, SPACE, B)] + [content[-1]["bytes"]]
    assert [entry["logprob"] for entry in content] == [-0.5, -0.5, -9999.0, -0.5, -0.5]
    assert content[3] == {
        "token": "b",
        "logprob": -0.5,
        "bytes": [B],
        "top_logprobs": [{"token": "b", "logprob": -0.5, "bytes": [B]}, {"token": "c", "logprob": -1.5, "bytes": [B + 1]}],
    }
    assert choice["logprobs"]["refusal"] is None


def test_without_a_wish_there_is_nothing_about_tokens(client: httpx.Client) -> None:
    assert answer(client, CHAT, {"messages": USER})["logprobs"] is None
    assert answer(client, CHAT, {"messages": USER, "logprobs": False, "top_logprobs": 0})["logprobs"] is None
    assert "token_ids" not in answer(client, TEXT, {"prompt": "hi"})
    assert answer(client, CHAT, {"messages": USER, "logprobs": True})["logprobs"]["content"][0]["top_logprobs"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}),
        (CHAT, {"messages": USER, "logprobs": True, "stop": "b"}),
        (TEXT, {"prompt": "é b and more", "logprobs": 2, "return_token_ids": True, "max_tokens": 50}),
        (TEXT, {"prompt": "é b", "logprobs": 1, "echo": True}),
        (TEXT, {"prompt": [104, 105, 33], "logprobs": 1, "echo": True, "max_tokens": 0}),
        (TEXT, {"prompt": "hi", "echo": True}),
        (TEXT, {"prompt": "ab", "echo": True, "logprobs": 1, "n": 3}),
    ],
)
def test_a_stream_joins_to_the_whole(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    whole, chunks = answer(client, path, body), streamed(client, path, body)
    if path == CHAT:
        assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == whole["message"]["content"]
    else:
        assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    logprobs = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"] is not None]
    for key, value in (whole["logprobs"] or {}).items():
        joined = [entry for part in logprobs for entry in part[key]] if isinstance(value, list) else None
        assert joined == value, key
    assert [token for chunk in chunks for token in chunk.get("token_ids", [])] == whole.get("token_ids", [])
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [
        whole[key] for key in whole if key == "prompt_token_ids"
    ]
    assert [chunk["finish_reason"] for chunk in chunks][-1] == whole["finish_reason"]


def test_an_echo_scores_the_prompt_and_then_the_answer(client: httpx.Client) -> None:
    choice = answer(client, TEXT, {"prompt": [97, 98, 32], "echo": True, "logprobs": 1, "max_tokens": 1})
    assert choice["text"] == "ab b"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", " ", "b"],
        "token_logprobs": [None, -0.5, -9999.0, -0.5],
        "top_logprobs": [None, {"b": -0.5}, {" ": -0.5}, {"b": -0.5}],
        "text_offset": [0, 1, 2, 3],
    }


def test_an_echo_without_new_tokens(client: httpx.Client) -> None:
    response = client.post(TEXT, json={"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 0}).json()
    choice = response["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"][-2:] == ["a", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1], "the token that a text is begun with is not in it"
    assert choice["logprobs"]["top_logprobs"][-1] == {"b": -0.5}
    assert response["usage"]["completion_tokens"] == 0


def test_every_choice_of_every_prompt_has_its_own_details(client: httpx.Client) -> None:
    body = {"prompt": [[97, 98], [99, 100, 101]], "n": 2, "echo": True, "logprobs": 0, "return_token_ids": True, "max_tokens": 1}
    choices = client.post(TEXT, json=body).json()["choices"]
    assert [choice["text"] for choice in choices] == ["abb", "abb", "cded", "cded"]
    assert [choice["logprobs"]["tokens"] for choice in choices] == [[*"abb"], [*"abb"], [*"cded"], [*"cded"]]
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0, 1, 2]] * 2 + [[0, 1, 2, 3]] * 2
    assert [choice["prompt_token_ids"] for choice in choices] == [[97, 98]] * 2 + [[99, 100, 101]] * 2


def test_token_ids_of_prompt_and_answer(client: httpx.Client) -> None:
    choice = answer(client, TEXT, {"prompt": [97, 98, 99], "return_token_ids": True})
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98, 99], [98, 99, END])


def test_the_prompts_ids_stand_beside_the_choices_of_a_chat(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "ab"}], "return_token_ids": True}
    whole = client.post(CHAT, json=body).json()
    events = parse_sse(client.post(CHAT, json={**body, "stream": True}).content)
    assert whole["prompt_token_ids"][-2:] == [97, 98]
    assert [event["prompt_token_ids"] for event in events if "prompt_token_ids" in event] == [whole["prompt_token_ids"]]
    assert whole["choices"][0]["token_ids"] == [97, 98, END]


def test_the_openai_client_reads_them(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(
            model=MODEL_NAME, messages=[{"role": "user", "content": "ab"}], logprobs=True, top_logprobs=1, logit_bias={"97": 5}
        )
        assert chat.choices[0].logprobs is not None
        assert chat.choices[0].logprobs.content is not None
        assert [entry.token for entry in chat.choices[0].logprobs.content][:2] == ["a", "b"]
        text = client.completions.create(model=MODEL_NAME, prompt="ab", logprobs=2, echo=True)
        assert text.choices[0].logprobs is not None
        assert text.choices[0].logprobs.token_logprobs is not None
        assert text.choices[0].text == "abab"
