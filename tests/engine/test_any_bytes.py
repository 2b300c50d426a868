"""Whatever bytes a model says, the way from tokens to text neither fails, nor invents or loses a character."""

from dataclasses import replace

from engine_fakes import VirtualClock, loaded, merged, run_dry, scheduled
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_server.core.options import EngineOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.request import AnswerMode, FinishReason
from inference_server.engine.engine import Engine
from inference_server.parsing.dialect import GEMMA_CALLS, GEMMA_THOUGHT, JSON_CALLS, THINK_TAGS, Dialect

MARKUP = ["<|channel>thought\n", "<channel|>", "<|tool_call>call:f{", 'a:<|"|>', '<|"|>', "}<tool_call|>", "<think>", "</think>"]
MARKUP += ['<tool_call>\n{"name": "f", "arguments": {', '"b": [1, ', "]}}", "</tool_call>", "<"]
TEXTS = ["\n", "STOP", "ST", "é", "日本", "🙂", "\ufffd", "\x00", "\u2028"]
HALVES = [text.encode()[:-1] for text in ("é", "日", "🙂")]
PIECES = st.sampled_from([*(piece.encode() for piece in MARKUP + TEXTS), *HALVES]) | st.binary(max_size=3)
BYTES = st.lists(PIECES, min_size=1, max_size=12).map(b"".join)
STOPS = st.lists(st.sampled_from(["STOP", "\n\n", "é", "🙂", "\ufffd", "x"]), max_size=3, unique=True)
GEMMA, QWEN = Dialect(GEMMA_THOUGHT, GEMMA_CALLS), Dialect(THINK_TAGS, JSON_CALLS)
fuzzed = settings(max_examples=80, deadline=None)


def answered(said: bytes, stops: list[str], dialect: Dialect | None, mode: AnswerMode | None) -> OutputDelta:
    engine = Engine(lambda: replace(loaded(), dialect=dialect), EngineOptions(), clock=VirtualClock())
    engine.load()
    request = scheduled("", max_tokens=len(said) + 1, stop=tuple(stops))
    request.token_ids = [256, *said]
    request.num_prompt_tokens = len(request.token_ids)
    request.answer = mode
    engine.add(request)
    whole = merged(run_dry(engine)["r"])
    assert whole.error is None
    assert whole.finish_reason is not None
    return whole


@fuzzed
@given(BYTES.filter(bool), STOPS)
def test_text_is_the_bytes_up_to_the_first_stop_string(said: bytes, stops: list[str]) -> None:
    text = said.decode("utf-8", "replace")
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    end, length = min(ends, default=(len(text), 0))
    whole = answered(said, stops, None, None)
    assert whole.text == text[: end + length]
    assert whole.finish_reason is FinishReason.STOP


@fuzzed
@given(BYTES.filter(bool), STOPS, st.sampled_from([GEMMA, QWEN]), st.booleans(), st.booleans())
def test_thoughts_and_calls_of_any_bytes(said: bytes, stops: list[str], dialect: Dialect, tools: bool, in_thought: bool) -> None:
    whole = answered(said, stops, dialect, AnswerMode(in_thought=in_thought, tools=tools))
    shown = whole.text + whole.reasoning + "".join(call.arguments for call in whole.tool_calls)
    assert shown.count("\ufffd") <= said.decode("utf-8", "replace").count("\ufffd")
    assert not any(stop in whole.text for stop in stops)
