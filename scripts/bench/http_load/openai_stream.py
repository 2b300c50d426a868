"""What a client that measures must know of the OpenAI API's streams. Needs nothing but Python, so that Locust's file can use it."""

from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}  # field of a body: makes the last event count the tokens


def event_text(event: dict[str, Any]) -> str:
    """The text that an event of a stream brings, thoughts included; empty if it only names a role or the usage."""
    return "".join(map(_choice_text, event.get("choices") or ()))


def _choice_text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
