"""What text a run of tokens becomes, and where it ends: characters, stop strings, and text that is held back."""

import pytest
from engine_fakes import EOS, TOKENIZER, engine_on, loaded, merged, run_dry, scheduled

from inference_server.core.request import FinishReason
from inference_server.tokenization.tokenizer import ByteTokenizer


def test_end_of_text_token_is_returned_without_text(overlap: bool) -> None:
    engine = engine_on(loaded(overlap=overlap))
    engine.add(scheduled("hello"))
    whole = merged(run_dry(engine)["r"])
    assert (whole.text, whole.finish_reason) == ("hello", FinishReason.STOP)
    assert whole.token_ids == [*b"hello", EOS]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, 6)


def test_max_tokens_ends_with_length_and_flushes_the_open_character(overlap: bool) -> None:
    engine = engine_on(loaded(overlap=overlap))
    engine.add(scheduled("aé", max_tokens=2))
    whole = merged(run_dry(engine)["r"])
    assert (whole.text, whole.finish_reason) == ("a\N{REPLACEMENT CHARACTER}", FinishReason.LENGTH)
    assert len(whole.token_ids) == 2


def test_split_character_is_never_sent_in_halves() -> None:
    engine = engine_on(loaded())
    engine.add(scheduled("é€😀"))
    deltas = run_dry(engine)["r"]
    assert [d.text for d in deltas if d.text] == ["é", "€", "😀"]


@pytest.mark.parametrize(
    ("prompt", "stop", "text", "reason"),
    [
        ("one END two", ("END",), "one ", FinishReason.STOP),
        ("one EN two", ("END",), "one EN two", FinishReason.STOP),
        ("one EN", ("END",), "one EN", FinishReason.STOP),
        ("aaab", ("aab", "b"), "a", FinishReason.STOP),
        ("END", ("END",), "", FinishReason.STOP),
    ],
)
def test_stop_strings_span_tokens_and_are_cut(prompt: str, stop: tuple[str, ...], text: str, reason: FinishReason, overlap: bool) -> None:
    engine = engine_on(loaded(overlap=overlap))
    engine.add(scheduled(prompt, stop=stop))
    deltas = run_dry(engine)["r"]
    assert (merged(deltas).text, merged(deltas).finish_reason) == (text, reason)
    assert all(text.startswith(merged(deltas[:n]).text) for n in range(len(deltas)))


@pytest.mark.parametrize(
    ("sampling", "text"),
    [
        ({"stop": ("b",), "include_stop": True}, "ab"),
        ({"stop": ("b",), "min_tokens": 2}, "abca"),
        ({"stop": ("bc",), "min_tokens": 2}, "a"),
        ({"stop_token_ids": frozenset({EOS, ord("c")})}, "ab"),
        ({"stop_token_ids": frozenset({EOS, ord("c")}), "include_stop": True}, "abc"),
        ({"stop_token_ids": frozenset({EOS}), "include_stop": True}, "abcab"),
    ],
)
def test_what_ends_a_text_counts_from_min_tokens_and_is_shown_on_request(sampling: dict[str, object], text: str) -> None:
    engine = engine_on(loaded())
    engine.add(scheduled("abcab", **sampling))
    whole = merged(run_dry(engine)["r"])
    assert (whole.text, whole.finish_reason) == (text, FinishReason.STOP)


def test_held_back_text_comes_out_at_max_tokens() -> None:
    engine = engine_on(loaded())
    engine.add(scheduled("abEND", stop=("END",), max_tokens=4))
    assert merged(run_dry(engine)["r"]).text == "abEN"


def test_stop_string_that_the_last_allowed_token_completes_is_a_stop() -> None:
    engine = engine_on(loaded())
    engine.add(scheduled("abEND", stop=("END",), max_tokens=5))
    whole = merged(run_dry(engine)["r"])
    assert (whole.text, whole.finish_reason) == ("ab", FinishReason.STOP)


def test_prompt_of_one_byte_of_a_character_does_not_leak_into_the_answer() -> None:
    engine = engine_on(loaded())
    request = scheduled("x")
    request.token_ids[:] = [TOKENIZER.bos_token_id, *"é".encode()[:1]]
    engine.add(request)
    assert merged(run_dry(engine)["r"]).text == "\N{REPLACEMENT CHARACTER}"


def test_first_space_of_an_answer_is_kept_where_the_vocabulary_marks_words() -> None:
    class Marked(ByteTokenizer):
        strips_leading_space = True

    engine = engine_on(loaded(tokenizer=Marked()))
    engine.add(scheduled(" a"))
    assert merged(run_dry(engine)["r"]).text == " a"
