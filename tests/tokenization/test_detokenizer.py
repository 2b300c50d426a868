"""Incremental decoding equals whole decoding, for every split, and never shows half a character."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tokenizers import TEXTS

from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.detokenizer import IncrementalDetokenizer
from inference_server.tokenization.tokenizer import ByteTokenizer, Tokenizer


def stream(tokenizer: TokenizerLike, chunks: Sequence[Sequence[int]], skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.flush()]


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    chunks, start = [], 0
    for size in sizes:
        chunks.append(ids[start : start + size])
        start += size
    return [*chunks, ids[start:]]


@pytest.mark.parametrize("name", ["fallback", "level"])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=30), sizes=st.lists(st.integers(0, 4), max_size=40))
def test_valid_text_comes_back_whole(name: str, text: str, sizes: list[int], request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(text)
    deltas = stream(tokenizer, cut(ids, sizes))
    assert "".join(deltas) == tokenizer.decode(ids)
    assert "".join(deltas).count("\ufffd") == tokenizer.decode(ids).count("\ufffd")


@pytest.mark.parametrize("name", ["fallback", "level"])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), skip=st.booleans())
def test_any_ids_stream_as_they_decode(name: str, data: st.DataObject, skip: bool, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=30))
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=30))
    assert "".join(stream(tokenizer, cut(ids, sizes), skip)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("text", TEXTS)
def test_no_delta_holds_half_a_character(text: str, fallback: Tokenizer) -> None:
    deltas = stream(fallback, [[i] for i in fallback.encode(text)])
    assert sum(delta.count("\ufffd") for delta in deltas) == text.count("\ufffd")
    assert deltas[-1] == ""


def test_a_character_is_held_until_whole_and_flushed_as_a_replacement() -> None:
    tokenizer = ByteTokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push([byte]) for byte in "é€".encode()] == ["", "é", "", "", "€"]
    assert detokenizer.push(list("x😀".encode()[:-1])) == "x"
    assert detokenizer.flush() == "\ufffd"


def test_leading_space_goes_only_from_a_text_of_its_own(fallback: Tokenizer) -> None:
    class Stripping(ByteTokenizer):
        strips_leading_space = True

    ids = list(b"  a b")
    alone = IncrementalDetokenizer(Stripping())
    assert "".join(alone.push([i]) for i in ids) == " a b"
    continued = IncrementalDetokenizer(Stripping(), prompt_ids=[65])
    assert "".join(continued.push([i]) for i in ids) == "  a b"
    answering = IncrementalDetokenizer(ByteTokenizer(), prompt_ids=[65], strip_leading_space=True)
    assert "".join(answering.push([i]) for i in ids) == " a b"
    assert "".join(stream(fallback, [fallback.encode(" the")])) == " the"


def test_special_tokens_that_are_kept() -> None:
    ids = [97, 256, 98, 257]
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), keep={256})
    assert detokenizer.push(ids) + detokenizer.flush() == "a<bos>b"
