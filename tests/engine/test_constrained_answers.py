"""Answers that must fit a grammar, through the engine: the order of calls, neighbours, preemption, faults, and how answers end."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import jsonschema
import pytest
from constrained_runs import CLOSING, PERSON, answers, compiled, engine_on, request
from engine_fakes import RecordList

from inference_server.backends.fake_backend import PRINTABLE_ASCII, FakeBackend, FakeStep
from inference_server.core.errors import InvalidRequestError
from inference_server.core.grammar import Constraint
from inference_server.core.plan import StepPlan, TokenMasks
from inference_server.core.request import FinishReason, ScheduledRequest


class OrderedBackend(FakeBackend):
    """Checks that every step is sampled once, before the next launch; with masks, only after the step before it was collected."""

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


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
def test_answers_are_the_same_alone_and_among_neighbours_under_preemption(overlap: bool) -> None:
    grammars = [compiled(PERSON), None, compiled({"type": "array", "items": {"type": "string"}, "minItems": 6})]

    def requests() -> list[ScheduledRequest]:
        return [request(f"r{index}", grammars[index % 3], 60 + index) for index in range(12)]

    alone = [answers(engine_on(FakeBackend(supports_overlap=overlap)), each) for each in requests()]
    sink = RecordList()
    together = answers(engine_on(FakeBackend(supports_overlap=overlap), num_blocks=16, sink=sink), *requests())
    assert sum(record.num_preemptions for record in sink.requests) > 3
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
    """A grammar that fails at its third token."""

    mask: bytes | None = None
    finished = False

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
