"""Random requests whose answers are hard to stream: emoji, CJK and marks over several tokens, with stop strings among them."""

from collections.abc import Iterator
from random import Random
from typing import Any

from wire import CHAT, NATIVE, RESPONSES, TEXT

PIECES = (
    *("the", "Paris", "naïve", "Straße", "ﬁn", "e\u0301", "東京", "你好\uff0c世界", "안녕하세요", "مرحبا", "नमस्ते"),
    *("🦊", "🙂🙃", "👩‍👩‍👧‍👦", "🇫🇷", "👍🏽", "\U0001d518", "\u2028", "\u200b", "\ufffd", "\x00", "\n", "\n\n", "\t", "\r\n"),
    *('"', "\\", "\\u00e9", "data: ", "[DONE]", ": ping", "<", "<|", "</", "{}", "&amp;", ".", "?"),
)
ROUTES = (CHAT, TEXT, RESPONSES, NATIVE)


def requests(random: Random, number: int, max_tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the routes in turn, each with a body. The seed makes the answer the same whenever it is asked for."""
    for index in range(number):
        path = ROUTES[index % len(ROUTES)]
        text = "".join(random.choice(PIECES) + random.choice(["", " "]) for _ in range(random.randint(1, 12)))
        body = {
            "temperature": random.choice([0, 1.0]),
            "seed": random.randrange(1000),
            "include_stop_str_in_output": random.random() < 0.25,
            "max_output_tokens" if path == RESPONSES else "max_tokens": random.randint(1, max_tokens),
            "cache_salt": f"{index}",
        }
        if stops := list(_stops(random, text)):
            body["stop"] = stops
        if path in (CHAT, TEXT) and random.random() < 0.5:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": random.random() < 0.5}
        yield path, body | prompt_of(path, text)


def prompt_of(path: str, text: str) -> dict[str, Any]:
    """The field of each route that asks for `text`."""
    chat = [{"role": "user", "content": text}]
    return {CHAT: {"messages": chat}, TEXT: {"prompt": text}, RESPONSES: {"input": text}, NATIVE: {"text": text}}[path]


def _stops(random: Random, text: str) -> Iterator[str]:
    """Parts of the prompt, which the answer is likely to repeat, and pieces that it may contain."""
    for _ in range(random.choice([0, 1, 1, 3])):
        start = random.randrange(len(text))
        yield random.choice([text[start : start + random.randint(1, 4)], random.choice(PIECES)])
