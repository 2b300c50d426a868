"""`bad_words`: which spellings are forbidden, and that no answer contains them, even if words overlap."""

from dataclasses import replace
from typing import Any

import pytest
from constrained_runs import answers, engine_on, request
from engine_fakes import TOKENIZER, RecordList, loaded

from inference_server.backends.fake_backend import FakeBackend
from inference_server.core.errors import UnsupportedParameterError
from inference_server.core.generation import GenerationRequest
from inference_server.core.options import EngineOptions
from inference_server.core.request import ScheduledRequest
from inference_server.engine.input_processor import InputProcessor
from inference_server.grammar.bad_words import BadWords

WORDS = ["c", "ab", "bda"]


def allowed(grammar: Any, *token_ids: int) -> set[int]:
    """The tokens that may follow these."""
    state = grammar.start()
    for token_id in token_ids:
        state.advance(token_id, 100)
    return {index for index in range(len(state.mask) * 8) if state.mask[index // 8] >> index % 8 & 1}


def test_the_last_token_of_a_word_is_forbidden_behind_the_others() -> None:
    grammar, everything = BadWords([[5], [7, 8], [7, 8, 7, 9]], 40), set(range(64))
    assert allowed(grammar) == allowed(grammar, 8, 6) == everything - {5}
    assert allowed(grammar, 6, 7) == everything - {5, 8}
    assert allowed(grammar, 7, 8, 7) == everything - {5, 8, 9}
    assert allowed(BadWords([[0], [39]], 40)) == everything - {0, 39}


def test_a_word_is_spelt_alone_and_behind_a_space_where_that_is_one_token_as_well() -> None:
    class Spaced(type(TOKENIZER)):  # type: ignore[misc]
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return {"one": [1], " one": [2], "two": [3], " two": [4, 5], "three": [6], " three": [6]}[text]

    model = replace(loaded(), tokenizer=Spaced())
    process = InputProcessor(model, EngineOptions()).process
    grammar = process(GenerationRequest([65], 0.0, bad_words=(" one", "two", "three"))).grammar
    assert set(range(200)) - allowed(grammar) == {1, 2, 3, 6}
    assert process(GenerationRequest([65], 0.0)).grammar is None
    with pytest.raises(UnsupportedParameterError) as refusal:
        process(GenerationRequest([65], 0.0, bad_words=("one",), allowed_token_ids=frozenset({1})))
    assert refusal.value.param == "bad_words"


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
def test_no_answer_has_them_alone_or_among_neighbours_under_preemption(overlap: bool) -> None:
    grammar = BadWords([TOKENIZER.encode(word, add_special_tokens=False) for word in WORDS], TOKENIZER.vocab_size)

    def requests() -> list[ScheduledRequest]:
        return [request(f"r{index}", grammar if index % 2 else None, 80) for index in range(12)]

    def engine(num_blocks: int) -> Any:
        return engine_on(FakeBackend(alphabet=b"abcd", supports_overlap=overlap), num_blocks, sink)

    sink = RecordList()
    together = answers(engine(16), *requests())
    assert sum(record.num_preemptions for record in sink.requests) > 3
    for index, each in enumerate(requests()):
        text = answers(engine(400), each)[each.request_id].text
        assert len(text) == 80
        assert together[each.request_id].text == text
        assert any(word in text for word in WORDS) != index % 2
