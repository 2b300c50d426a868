"""Thoughts, calls and visible text, whole and in pieces of any size."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_server.core.outputs import CallState, OutputDelta, ToolCallDelta
from inference_server.core.request import AnswerMode
from inference_server.parsing.answer_parser import AnswerParser, Part, Thought
from inference_server.parsing.dialect import GEMMA_CALLS, GEMMA_THOUGHT, JSON_CALLS, THINK_TAGS, Dialect

GEMMA = Dialect(GEMMA_THOUGHT, GEMMA_CALLS)
QWEN = Dialect(THINK_TAGS, JSON_CALLS)
TOOLS = AnswerMode(tools=True)
GEMMA_CALL = '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
QWEN_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
PIECES = [
    *("<|channel>thought\n", "<channel|>", "<|tool_call>", "<tool_call|>", "call:f{", 'a:<|"|>', '<|"|>', "}", "<", "\n"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", ', '"arguments": {', '"b": [1, ', "]}}", "x", "é🙂"),
    *(GEMMA_CALL, QWEN_CALL),
]


def gathered(parts: Sequence[Part]) -> OutputDelta:
    whole = OutputDelta()
    for part in parts:
        match part:
            case str():
                assert part
                whole.merge(OutputDelta(text=part))
            case Thought(text):
                assert text
                whole.merge(OutputDelta(reasoning=text))
            case call:
                whole.merge(OutputDelta(tool_calls=(call,)))
    return whole


def parsed(dialect: Dialect, chunks: Sequence[str], mode: AnswerMode = TOOLS) -> tuple[str, str, list[tuple[str, str]]]:
    """Visible text, thoughts, and the complete calls as name and arguments."""
    parser = AnswerParser(dialect, mode)
    whole = gathered([part for chunk in chunks for part in parser.push(chunk)] + parser.flush())
    calls = [call for call in whole.tool_calls if call.state is CallState.COMPLETE]
    assert len(calls) == parser.num_calls
    assert all(call.id.startswith("call_") and call.name for call in calls)
    assert all(call.state is not CallState.OPEN for call in whole.tool_calls)
    return whole.text, whole.reasoning, [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize(
    ("dialect", "text", "visible", "thought"),
    [
        (GEMMA, "<|channel>thought\nHm.\n<channel|>Paris<turn|>", "Paris<turn|>", "Hm."),
        (GEMMA, "<|channel>thought\n<channel|>Paris", "Paris", ""),
        (GEMMA, "A <|channel>thought\nb<channel|> c", "A  c", "b"),
        (GEMMA, "<|channel>final\nno thought", "<|channel>final\nno thought", ""),
        (QWEN, "<think>\nHm.\n\nSo.\n</think>\n\nParis\n", "Paris\n", "Hm.\n\nSo."),
        (QWEN, "The tag <think> opens</think>", "The tag <think> opens</think>", ""),
        (QWEN, "<think>\nno end\n", "", "no end\n"),
        (QWEN, "<think>no end</thi", "", "no end</thi"),
        (QWEN, "<thin", "<thin", ""),
        (QWEN, "<think>a<think>b</think>c", "c", "a<think>b"),
        (QWEN, "<think>" + QWEN_CALL + "</think>", "", QWEN_CALL),
    ],
)
def test_thoughts(dialect: Dialect, text: str, visible: str, thought: str) -> None:
    assert parsed(dialect, [text]) == parsed(dialect, list(text)) == (visible, thought, [])


def test_the_prompt_may_have_opened_the_thought() -> None:
    assert QWEN.opens_thought("<|im_start|>assistant\n<think>\n")
    assert not QWEN.opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert GEMMA.opens_thought("<|turn>model\n<|channel>thought\n")
    assert not Dialect(calls=JSON_CALLS).opens_thought("<think>")
    mode = AnswerMode(in_thought=True)
    assert parsed(QWEN, list("Hm.\n</think>\n\nParis"), mode) == ("Paris", "Hm.", [])
    assert parsed(QWEN, list("\n\nHm.\n"), mode) == ("", "Hm.\n", [])


@pytest.mark.parametrize(
    ("dialect", "text", "visible", "arguments"),
    [
        (GEMMA, GEMMA_CALL, "", [{"a": "x"}]),
        (GEMMA, f"<|channel>thought\nUse f.<channel|>Wait.{GEMMA_CALL}{GEMMA_CALL}", "Wait.", [{"a": "x"}] * 2),
        (GEMMA, "<|tool_call>call:f{}<tool_call|>", "", [{}]),
        (QWEN, QWEN_CALL, "", [{"a": "x"}]),
        (QWEN, f"<think>\n\n</think>\n\nWait.\n{QWEN_CALL}\n{QWEN_CALL}\n", "Wait.\n", [{"a": "x"}] * 2),
        (QWEN, '<tool_call>{"arguments":{"a":"</tool_call>"},"name":"f"}</tool_call>', "", [{"a": "</tool_call>"}]),
        (QWEN, '<tool_call>{"name":"f"}</tool_call> done', " done", [{}]),
    ],
)
def test_calls(dialect: Dialect, text: str, visible: str, arguments: list[object]) -> None:
    whole = parsed(dialect, [text])
    assert whole == parsed(dialect, list(text))
    assert whole[0] == visible
    assert [(name, json.loads(value)) for name, value in whole[2]] == [("f", value) for value in arguments]


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (GEMMA, "a <|tool_call>"),
        (GEMMA, "<|tool_call>call me"),
        (GEMMA, "<|tool_call>call:f"),
        (GEMMA, "<|tool_call>call:{}<tool_call|>"),
        (GEMMA, '<|tool_call>call:f{a:<|"|>x'),
        (GEMMA, "<|tool_call>call:f{a:1}"),
        (GEMMA, "<|tool_call>call:f{a:1}<tool_"),
        (GEMMA, "<|tool_call>call:f{a:1,}<tool_call|> b"),
        (GEMMA, "<|tool_call>call:f{a}<tool_call|> b"),
        (GEMMA, "<|tool_call>call:f{a:<tool_call|> b"),
        (GEMMA, "<|tool_call>call:f{a:1} b<tool_call|>"),
        (GEMMA, "<|tool_call>call:f{a:" + "[" * 65),
        (QWEN, "<tool_call>"),
        (QWEN, "<tool_call></tool_call>"),
        (QWEN, "<tool_call>{}</tool_call>"),
        (QWEN, "the <tool_call> tag"),
        (QWEN, '<tool_call>{"name":"","arguments":{}}</tool_call>'),
        (QWEN, '<tool_call>{"name":"f","arguments":[]}</tool_call>'),
        (QWEN, '<tool_call>{"name":"f","arguments":{"a":word}}</tool_call>'),
        (QWEN, '<tool_call>{"name":"f","arguments":{"a":NaN}}</tool_call>'),
        (QWEN, '<tool_call>{"name":"f","arguments":{"a":"\\x"}}</tool_call>'),
        (QWEN, '<tool_call>{"name":"f","name":"g","arguments":{}}</tool_call>'),
        (QWEN, '<tool_call>{"name":"f","arguments":{}}, </tool_call>'),
        (QWEN, '<tool_call>{"name":"f","other":1}</tool_call>'),
    ],
)
def test_broken_markup_comes_back_as_text(dialect: Dialect, text: str) -> None:
    assert parsed(dialect, [text]) == parsed(dialect, list(text)) == (text, "", [])


def test_a_call_after_a_broken_one() -> None:
    for broken in ("<|tool_call>", "<|tool_call>call:f{a:1", "<|tool_call>call:f{a:1}<tool_"):
        assert parsed(GEMMA, list(broken + GEMMA_CALL)) == (broken, "", [("f", '{"a":"x"}')])


def test_a_call_streams_and_says_its_name_first() -> None:
    parser = AnswerParser(QWEN, TOOLS)
    pieces = [part for char in QWEN_CALL for part in parser.push(char)]
    first, *rest = [piece for piece in pieces if not isinstance(piece, str | Thought)]
    assert len(rest) == len('{"a": "x"}') + 1
    assert (first.index, first.name, first.arguments) == (0, "f", "")
    assert {(piece.index, piece.id, piece.name) for piece in rest} == {(0, "", "")}
    assert [piece.state for piece in rest] == [CallState.OPEN] * (len(rest) - 1) + [CallState.COMPLETE]


def test_an_announced_call_that_breaks_is_taken_back() -> None:
    parser = AnswerParser(QWEN, TOOLS)
    opened = gathered(parser.push('<tool_call>{"name":"f",'))
    assert [(call.name, call.state) for call in opened.tool_calls] == [("f", CallState.OPEN)]
    broken, *text = parser.push("oh no")
    assert broken == ToolCallDelta(0, state=CallState.BROKEN)
    assert text == ['<tool_call>{"name":"f",', "oh no"]


def test_without_tools_their_markup_is_text() -> None:
    assert parsed(GEMMA, [GEMMA_CALL], AnswerMode()) == (GEMMA_CALL, "", [])


def test_one_call_where_only_one_is_allowed() -> None:
    mode = AnswerMode(tools=True, parallel=False)
    parser = AnswerParser(GEMMA, mode)
    assert not parser.finished
    assert len(parser.push(GEMMA_CALL + GEMMA_CALL)) == 1
    assert parser.finished
    assert parser.push(GEMMA_CALL) == parser.flush() == []


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        (["Hi", "<", "there"], 0),
        (["<think>", "\n", "Hm", ".", "\n", "</think>", "\n\n", "Paris"], 6),
        (["<think>", "Hm"], 2),
        (["<", "thi", "nk>", "a", "</", "think", ">b", "c"], 7),
        (["<think></think>", "a"], 1),
    ],
)
def test_the_tokens_of_thoughts_are_counted_with_their_markers(tokens: list[str], count: int) -> None:
    parser = AnswerParser(QWEN, AnswerMode())
    for token in tokens:
        parser.push(token)
    assert parser.num_thought_pushes == count


@settings(deadline=None)
@given(
    st.sampled_from([GEMMA, QWEN]),
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.lists(st.integers(0, 200), max_size=20),
    st.booleans(),
    st.booleans(),
)
def test_any_split_gives_the_same_parse(dialect: Dialect, text: str, cuts: list[int], tools: bool, in_thought: bool) -> None:
    mode = AnswerMode(in_thought=in_thought, tools=tools)
    ends = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[a:b] for a, b in pairwise(ends)]
    whole = parsed(dialect, [text], mode)
    assert parsed(dialect, chunks, mode) == parsed(dialect, list(text), mode) == whole
    for _, arguments in whole[2]:
        assert isinstance(json.loads(arguments), dict)


@settings(deadline=None)
@given(st.text(alphabet='<>|{}":,abct_lo/hink\n ', max_size=200), st.sampled_from([GEMMA, QWEN]))
def test_nothing_is_lost_where_there_is_no_markup(text: str, dialect: Dialect) -> None:
    visible, thought, calls = parsed(dialect, list(text))
    if not thought and not calls and "channel" not in text and "think" not in text:
        assert visible == text
