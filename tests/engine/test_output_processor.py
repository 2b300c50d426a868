"""Answers of chats between the detokenizer and the stop strings. The echo backend repeats the prompt, so the prompt is the answer."""

from dataclasses import replace

import pytest
from engine_fakes import VirtualClock, loaded, merged, run_dry, scheduled

from inference_server.core.errors import DeadlineExceededError
from inference_server.core.options import EngineOptions
from inference_server.core.outputs import CallState, OutputDelta
from inference_server.core.request import AnswerMode, FinishReason
from inference_server.engine.engine import Engine
from inference_server.parsing.dialect import GEMMA_CALLS, GEMMA_THOUGHT, Dialect

DIALECT = Dialect(GEMMA_THOUGHT, GEMMA_CALLS)
OPENER, CLOSER = "<|channel>thought\n", "<channel|>"
CALL = '<|tool_call>call:f{a:<|"|>STOP<|"|>}<tool_call|>'


def engine_of(clock: VirtualClock | None = None, **options: object) -> Engine:
    engine = Engine(lambda: replace(loaded(), dialect=DIALECT), EngineOptions(**options), clock=clock or VirtualClock())  # type: ignore[arg-type]
    engine.load()
    return engine


def answered(text: str, mode: AnswerMode | None, **sampling: object) -> OutputDelta:
    engine = engine_of()
    request = scheduled(text, **sampling)
    request.answer = mode
    engine.add(request)
    return merged(run_dry(engine)["r"])


@pytest.mark.parametrize(
    ("text", "sampling", "visible", "reason"),
    [
        (f"{OPENER}STOP{CLOSER}a", {}, "a", FinishReason.STOP),
        (f"{OPENER}STOP{CLOSER}ab STOP c", {}, "ab ", FinishReason.STOP),
        (f"a{CALL}", {}, "a", FinishReason.TOOL_CALLS),
        (f"a{CALL}b STOP c", {}, "ab ", FinishReason.TOOL_CALLS),
        (f"a STOP {CALL}", {}, "a ", FinishReason.STOP),
        (CALL, {"max_tokens": len(CALL) - 1}, '<|tool_call>call:f{a:<|"|>', FinishReason.STOP),
        (CALL, {"max_tokens": 15}, CALL[:15], FinishReason.LENGTH),
        (f"{CALL}abc", {"max_tokens": len(CALL) + 2}, "ab", FinishReason.LENGTH),
    ],
)
def test_stop_strings_and_ends(text: str, sampling: dict[str, object], visible: str, reason: FinishReason) -> None:
    whole = answered(text, AnswerMode(tools=True), stop=("STOP",), **sampling)
    assert (whole.text, whole.finish_reason) == (visible, reason)
    assert whole.error is None


def test_a_raw_prompt_is_not_looked_into() -> None:
    text = f"{OPENER}b{CLOSER}{CALL}"
    whole = answered(text, None)
    assert (whole.text, whole.reasoning, whole.tool_calls) == (text, "", ())


@pytest.mark.parametrize(
    ("text", "max_tokens", "count"),
    [
        (f"{OPENER}é{CLOSER}abc", 1000, len(f"{OPENER}é{CLOSER}".encode())),
        (f"{OPENER}ab", 1000, len(OPENER) + 2),
        (f"{OPENER}ab", len(OPENER) + 1, len(OPENER) + 1),
        (f"{OPENER}é", len(OPENER) + 1, len(OPENER) + 1),
        ("abc <|channel>x", 1000, 0),
    ],
)
def test_the_tokens_of_thoughts_are_counted(text: str, max_tokens: int, count: int) -> None:
    whole = answered(text, AnswerMode(), max_tokens=max_tokens)
    assert whole.usage is not None
    assert whole.usage.reasoning_tokens == count


def test_one_call_ends_an_answer_that_may_have_one() -> None:
    whole = answered(f"{CALL}{CALL}", AnswerMode(tools=True, parallel=False))
    assert [call.state for call in whole.tool_calls] == [CallState.COMPLETE]
    assert whole.finish_reason is FinishReason.TOOL_CALLS
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(CALL)


@pytest.mark.parametrize(("text", "is_late"), [(OPENER + "x" * 50, False), (OPENER[:5] * 20, True)])
def test_a_thought_is_output_for_a_deadline(text: str, is_late: bool) -> None:
    clock = VirtualClock()
    engine = engine_of(clock, request_deadline_s=5.0)
    request = scheduled(text)
    request.answer = AnswerMode()
    engine.add(request)
    deltas = []
    for _ in range(5 if is_late else len(OPENER) + 5):
        deltas += engine.step().values()
    clock.now += 6
    whole = merged(deltas + run_dry(engine)["r"])
    if is_late:
        assert isinstance(whole.error, DeadlineExceededError)
    else:
        assert whole.finish_reason is FinishReason.TIMEOUT
        assert set(whole.reasoning) == {"x"}
