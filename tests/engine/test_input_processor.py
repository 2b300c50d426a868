"""From the request of a front end to one that can be scheduled."""

from dataclasses import replace

import pytest
from engine_fakes import EOS, TOKENIZER, loaded

from inference_server.core.errors import InvalidRequestError, PromptTooLongError, UnsupportedParameterError
from inference_server.core.generation import ChatPrompt, GenerationRequest
from inference_server.core.model_spec import GenerationDefaults
from inference_server.core.options import EngineOptions
from inference_server.core.request import AnswerMode, RequestOrigin
from inference_server.core.request_history import RequestHistory
from inference_server.engine.input_processor import InputProcessor
from inference_server.parsing.dialect import JSON_CALLS, THINK_TAGS, Dialect
from inference_server.tokenization.chat_template import ChatTemplate

CHAT = ChatPrompt([{"role": "user", "content": "hi"}])


def processor(defaults: GenerationDefaults | None = None, max_model_len: int = 100) -> InputProcessor:
    model = replace(loaded(), max_model_len=max_model_len, defaults=defaults or GenerationDefaults())
    return InputProcessor(model, EngineOptions(default_max_tokens=20))


def test_every_request_gets_a_fresh_id_and_keeps_its_labels() -> None:
    origin = RequestOrigin("mine", session_id="s", fairness_key="f")
    asked = GenerationRequest("hi", 5.0, origin=origin, cache_salt="c", priority=-1)
    first, second = processor().process(asked), processor().process(asked)
    assert first.request_id != second.request_id
    assert first.token_ids == TOKENIZER.encode("hi")
    assert (first.origin, first.cache_salt, first.priority, first.arrival_time) == (origin, "c", -1, 5.0)


def test_choices_share_nothing_but_the_prompt_and_draw_with_seeds_in_a_row() -> None:
    first, *others = processor().choices(GenerationRequest("hi", 5.0, n=3, seed=2**63 - 2, origin=RequestOrigin("mine")))
    assert [choice.sampling.seed for choice in (first, *others)] == [2**63 - 2, 2**63 - 1, 0]
    assert len({choice.request_id for choice in (first, *others)}) == 3
    for other in others:
        assert (other.token_ids, other.origin, other.num_prompt_tokens) == (first.token_ids, first.origin, 3)
    mutable = [name for name in first.__slots__ if isinstance(getattr(first, name), list | RequestHistory)]
    assert mutable == ["token_ids", "block_tables", "history"]
    for name in mutable:
        assert len({id(getattr(choice, name)) for choice in (first, *others)}) == 3, name
    unseeded = processor().choices(GenerationRequest("hi", 5.0, n=2))
    assert unseeded[1].sampling.seed == (unseeded[0].sampling.seed + 1) % 2**63


@pytest.mark.parametrize(
    ("prompt_tokens", "asked", "default", "expected"),
    [(10, 7, None, 7), (10, 500, None, 90), (10, None, None, 20), (10, None, 16, 16), (90, None, None, 10), (99, 5, None, 1)],
)
def test_max_tokens_is_clamped_to_the_room(prompt_tokens: int, asked: int | None, default: int | None, expected: int) -> None:
    request = GenerationRequest([65] * prompt_tokens, 0.0, max_tokens=asked, default_max_tokens=default)
    assert processor().process(request).sampling.max_tokens == expected


def test_a_prompt_without_room_for_one_token_is_refused() -> None:
    with pytest.raises(PromptTooLongError) as refusal:
        processor().process(GenerationRequest([65] * 100, 0.0))
    assert refusal.value.param == "prompt"


def test_sampling_takes_the_models_defaults_only_where_none_is_asked() -> None:
    defaults = GenerationDefaults(temperature=0.7, top_p=0.9, top_k=64, min_p=0.1, repetition_penalty=1.05)
    own = processor(defaults).process(GenerationRequest("a", 0.0, temperature=0.0, top_k=0)).sampling
    assert (own.temperature, own.top_p, own.top_k, own.min_p, own.repetition_penalty) == (0.0, 0.9, 0, 0.1, 1.05)


def test_only_the_answer_of_a_plain_dialogue_loses_its_leading_space() -> None:
    model = replace(loaded(), template=ChatTemplate.plain(TOKENIZER), max_model_len=1000)
    plain = InputProcessor(model, EngineOptions())
    assert plain.process(GenerationRequest(CHAT, 0.0)).strip_leading_space
    assert not plain.process(GenerationRequest("hi", 0.0)).strip_leading_space
    assert not processor().process(GenerationRequest(CHAT, 0.0)).strip_leading_space


def test_chats_are_looked_into_and_raw_prompts_are_not() -> None:
    template = ChatTemplate("{{ messages[0].content }}{% if opened %}<think>\n{% endif %}", {})
    inputs = InputProcessor(replace(loaded(), template=template, dialect=Dialect(THINK_TAGS, JSON_CALLS)), EngineOptions())
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = replace(CHAT, tools=tools, parallel_tool_calls=False, variables={"opened": True})
    assert inputs.process(GenerationRequest(CHAT, 0.0)).answer == AnswerMode()
    assert inputs.process(GenerationRequest(asked, 0.0)).answer == AnswerMode(in_thought=True, tools=True, parallel=False)
    assert inputs.process(GenerationRequest("<think>", 0.0)).answer is None


def test_what_the_model_does_not_have_is_refused_by_name() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for fields in ({"tools": tools}, {"reasoning_effort": "none"}):
        with pytest.raises(UnsupportedParameterError) as refusal:
            processor().process(GenerationRequest(replace(CHAT, **fields), 0.0))  # type: ignore[arg-type]
        assert refusal.value.param in fields
        assert str(refusal.value.param) in refusal.value.message


def test_seeds_are_kept_or_drawn() -> None:
    seeds = {processor().process(GenerationRequest("a", 0.0)).sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert processor().process(GenerationRequest("a", 0.0, seed=7)).sampling.seed == 7


def test_only_chats_get_the_templates_stop_strings_and_ignore_eos_drops_every_end_of_text() -> None:
    chat = processor().process(GenerationRequest(CHAT, 0.0, stop=("x",))).sampling
    text = processor().process(GenerationRequest("a", 0.0, stop=("x",))).sampling
    endless = processor().process(GenerationRequest(CHAT, 0.0, stop=("x",), ignore_eos=True)).sampling
    assert (chat.stop, chat.stop_token_ids) == (("x", "<turn>"), {EOS})
    assert (text.stop, text.stop_token_ids) == (("x",), {EOS})
    assert (endless.stop, endless.stop_token_ids) == (("x",), frozenset())


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"stop": ("a", "")}])
def test_values_that_cannot_be_run_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        processor().process(GenerationRequest("a", 0.0, **fields))  # type: ignore[arg-type]
    assert refusal.value.param in fields


def test_stop_ids_are_joined_to_the_models_own_unless_these_are_ignored() -> None:
    asked = GenerationRequest("hi", 0.0, stop_token_ids=frozenset({65}))
    assert processor().process(asked).sampling.stop_token_ids == {65, EOS}
    assert processor().process(replace(asked, ignore_eos=True)).sampling.stop_token_ids == {65}
