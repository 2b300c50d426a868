"""Answers that must fit a grammar, through the engine, on a model whose tokens mean nothing: the grammar does all the work."""

import json
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import jsonschema
import pytest
from engine_fakes import TOKENIZER, RecordList, VirtualClock, loaded, merged, run_dry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_server.backends.fake_backend import PRINTABLE_ASCII, FakeBackend, FakeStep
from inference_server.core.errors import InvalidRequestError
from inference_server.core.grammar import CompiledGrammar, Constraint, GrammarKind, GrammarSpec
from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import CacheOptions, EngineOptions, SchedulerOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.plan import StepPlan, TokenMasks
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.engine.model_loader import grammar_compiler
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

EOS = TOKENIZER.eos_token_ids[0]
CLOSING = [EOS, *b'"}],0ab']
COMPILER = grammar_compiler(TOKENIZER, TOKENIZER.vocab_size)
assert COMPILER is not None

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class OrderedBackend(FakeBackend):
    """Checks that every step is sampled once, before the next launch, and with masks after the collect of the step before."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[tuple[str, int]] = []

    def launch(self, plan: StepPlan) -> FakeStep:
        assert not self.calls or self.calls[-1][0] != "launch"
        self.calls.append(("launch", plan.step_id))
        return super().launch(plan)

    def sample(self, step: FakeStep, masks: TokenMasks | None = None) -> None:
        if masks:
            earlier = {number for name, number in self.calls if name == "launch"} - {step.step_id}
            assert earlier <= {number for name, number in self.calls if name == "collect"}
        self.calls.append(("sample" if masks is None else "masked", step.step_id))
        super().sample(step, masks)

    def collect(self, step: FakeStep) -> Any:
        self.calls.append(("collect", step.step_id))
        return super().collect(step)


def engine_on(backend: FakeBackend, num_blocks: int = 400, sink: RecordList | None = None) -> Engine:
    spec = backend.load()
    layout = KVLayout.from_num_blocks(spec.groups, 16, num_blocks)
    backend.allocate(layout)
    scheduler = ContinuousBatchScheduler(create_cache(layout, CacheOptions()), SchedulerOptions(max_batch_size=8))
    model = replace(loaded(scheduler=scheduler), backend=backend, spec=spec)
    engine = Engine(lambda: model, EngineOptions(), [sink] if sink else [], VirtualClock())
    engine.load()
    return engine


def compiled(schema: Any) -> CompiledGrammar:
    assert COMPILER is not None
    return COMPILER.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), "response_format"))


def request(name: str, grammar: CompiledGrammar | None, max_tokens: int = 400) -> ScheduledRequest:
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=frozenset({EOS}))
    return ScheduledRequest(name, TOKENIZER.encode(f"prompt {name}"), sampling, 100.0, grammar=grammar)


def answers(engine: Engine, *requests: ScheduledRequest) -> dict[str, OutputDelta]:
    for each in requests:
        engine.add(each)
    return {request_id: merged(deltas) for request_id, deltas in run_dry(engine).items()}


SCALARS = st.one_of(
    st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 9)}),
    st.fixed_dictionaries({"type": st.just("integer")}, optional={"minimum": st.integers(-50, 0), "maximum": st.integers(0, 50)}),
    st.fixed_dictionaries({"type": st.just("integer"), "multipleOf": st.integers(1, 9)}, optional={"minimum": st.integers(-50, 0)}),
    st.fixed_dictionaries({"type": st.just("number")}, optional={"exclusiveMinimum": st.integers(-50, 0), "maximum": st.integers(1, 50)}),
    st.fixed_dictionaries({"type": st.sampled_from([["string", "null"], ["integer", "boolean"]])}),
    st.fixed_dictionaries({"type": st.just("string"), "format": st.sampled_from(["date", "time", "uuid", "ipv4", "date-time"])}),
    st.fixed_dictionaries({"type": st.just("string"), "pattern": st.sampled_from(["^[a-c]{2,4}$", "^a+b?$", "x", "^(ab|c)*$"])}),
    st.fixed_dictionaries({"enum": st.lists(st.one_of(st.text(max_size=4), st.integers(), st.none()), min_size=1, max_size=4)}),
    st.fixed_dictionaries({"const": st.one_of(st.text(max_size=4), st.booleans(), st.lists(st.integers(), max_size=2))}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, {"not": {}}, {"type": "array", "uniqueItems": True}]),
)
NAMES = st.text(st.sampled_from('abé"\\ '), max_size=3)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(NAMES, inner, max_size=4)
    objects = st.builds(
        lambda named, flags, extra: {
            "type": "object",
            "properties": named,
            "required": [name for name, flag in zip(named, flags, strict=False) if flag],
            "additionalProperties": extra,
        },
        properties,
        st.lists(st.booleans(), min_size=4, max_size=4),
        st.one_of(st.booleans(), inner),
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner}, optional={"minItems": st.integers(0, 2), "maxItems": st.integers(2, 3)}
    )
    tuples = st.builds(lambda items: {"type": "array", "prefixItems": items, "items": False}, st.lists(inner, min_size=1, max_size=3))
    unions = st.builds(
        lambda key, parts: {key: parts}, st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=2)
    )
    return st.one_of(objects, arrays, tuples, unions)


SCHEMAS = st.recursive(SCALARS, larger, max_leaves=6)


@pytest.fixture(scope="module")
def outcomes() -> Any:
    """Counts of what became of the schemas."""
    counts: Counter[str] = Counter()
    yield counts
    print(f"\nJSON schemas: {dict(counts)}")  # noqa: T201
    assert counts["refused"] <= 0.2 * counts.total()


@settings(max_examples=500, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS)
def test_every_finished_answer_fits_its_schema(outcomes: Counter[str], schema: Any) -> None:
    try:
        grammar = compiled(schema)
    except InvalidRequestError:
        outcomes["refused"] += 1
        return
    backend = FakeBackend(alphabet=CLOSING, supports_overlap=True)
    whole = answers(engine_on(backend), request("r", grammar))["r"]
    assert whole.error is None
    if whole.finish_reason is FinishReason.LENGTH:
        outcomes["cut"] += 1
        return
    outcomes["finished"] += 1
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["uuid", "ipv4"]))
    validator.validate(json.loads(whole.text))


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
def test_answers_are_the_same_alone_and_among_neighbours_under_preemption(overlap: bool) -> None:
    grammars = [compiled(PERSON), None, compiled({"type": "array", "items": {"type": "string"}, "minItems": 6})]

    def requests() -> list[ScheduledRequest]:
        return [request(f"r{index}", grammars[index % 3], 60 + index) for index in range(12)]

    alone = [answers(engine_on(FakeBackend(supports_overlap=overlap)), each) for each in requests()]
    sink = RecordList()
    together = answers(engine_on(FakeBackend(supports_overlap=overlap), num_blocks=16, sink=sink), *requests())
    assert sum(step.num_preempted for step in sink.steps) > 3
    for own in alone:
        for request_id, delta in own.items():
            assert together[request_id].text == delta.text
            assert together[request_id].finish_reason == delta.finish_reason


def test_a_step_with_masks_is_launched_before_the_step_before_is_collected_and_sampled_after() -> None:
    backend = OrderedBackend(supports_overlap=True)
    free = request("free", None, 40)
    answers(engine_on(backend), request("bound", compiled({"const": "abc"}), 40), free)
    assert len(free.output_token_ids) == 40
    masked = [number for name, number in backend.calls if name == "masked"]
    assert 5 < len(masked) < 15
    for number in masked[1:]:
        assert (
            backend.calls.index(("launch", number)) < backend.calls.index(("collect", number - 1)) < backend.calls.index(("masked", number))
        )
    for number in [number for name, number in backend.calls if name == "sample"]:
        assert backend.calls.index(("sample", number)) == backend.calls.index(("launch", number)) + 1


class Breaking:
    """A grammar whose third token fails."""

    mask: bytes | None = None

    def __init__(self) -> None:
        self.num_tokens = 0

    def start(self) -> Constraint:
        return Breaking()

    def advance(self, token_id: int, num_left: int) -> None:
        self.num_tokens += 1
        if self.num_tokens == 3:
            raise InvalidRequestError("too much work", param="response_format")


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
def test_a_fault_in_a_grammar_ends_its_request_alone(overlap: bool) -> None:
    backend = FakeBackend(supports_overlap=overlap)
    others = [request(f"r{index}", compiled(PERSON) if index % 2 else None, 50) for index in range(4)]
    expected = {
        each.request_id: answers(engine_on(FakeBackend()), replace(each, token_ids=list(each.token_ids)))[each.request_id].text
        for each in others
    }
    found = answers(engine_on(backend), request("bad", Breaking()), *others)
    assert isinstance(found.pop("bad").error, InvalidRequestError)
    assert {request_id: delta.text for request_id, delta in found.items()} == expected


def test_choices_of_one_prompt_stand_where_they_are_in_the_grammar() -> None:
    grammar = compiled(PERSON)
    twins = [request(f"r{index}", grammar) for index in range(5)]
    random = Random(3)
    for twin in twins:
        twin.token_ids[-1] = random.choice(PRINTABLE_ASCII)
    backend = FakeBackend(alphabet=CLOSING, supports_overlap=True)
    for delta in answers(engine_on(backend), *twins).values():
        jsonschema.validate(json.loads(delta.text), PERSON)


@pytest.mark.parametrize("max_tokens", range(20, 45, 3))
def test_an_answer_is_closed_while_its_budget_suffices(max_tokens: int) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "string"}}},
        "required": ["a", "b"],
    }
    whole = answers(engine_on(FakeBackend(supports_overlap=True)), request(f"r{max_tokens}", compiled(schema), max_tokens))
    (delta,) = whole.values()
    assert delta.finish_reason is FinishReason.STOP
    assert len(delta.token_ids) > max_tokens - 6
    jsonschema.validate(json.loads(delta.text), schema)
