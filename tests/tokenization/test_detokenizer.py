"""Incremental decoding equals decoding the whole, and never shows half a character."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tokenizers import TEXTS

from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.detokenizer import IncrementalDetokenizer, TokenPieces
from inference_server.tokenization.tokenizer import ByteTokenizer, Tokenizer


def stream(tokenizer: TokenizerLike, ids: Sequence[int], skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(TokenPieces(tokenizer, skip))
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.mark.parametrize("name", ["fallback", "level"])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=30))
def test_valid_text_comes_back_whole(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(text)
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == tokenizer.decode(ids)
    assert "".join(deltas).count("\ufffd") == tokenizer.decode(ids).count("\ufffd")


@pytest.mark.parametrize("name", ["fallback", "level"])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), skip=st.booleans())
def test_any_ids_stream_as_they_decode(name: str, data: st.DataObject, skip: bool, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=30))
    assert "".join(stream(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("text", TEXTS)
def test_no_delta_holds_half_a_character(text: str, fallback: Tokenizer) -> None:
    deltas = stream(fallback, fallback.encode(text))
    assert sum(delta.count("\ufffd") for delta in deltas) == text.count("\ufffd")
    assert deltas[-1] == ""


def test_a_character_is_held_until_whole_and_flushed_as_a_replacement() -> None:
    detokenizer = IncrementalDetokenizer(TokenPieces(ByteTokenizer()))
    assert [detokenizer.push(byte) for byte in "é€".encode()] == ["", "é", "", "", "€"]
    assert [detokenizer.push(byte) for byte in "x😀".encode()[:-1]] == ["x", "", "", ""]
    assert detokenizer.flush() == "\ufffd"


def test_leading_space_goes_only_from_a_text_of_its_own(fallback: Tokenizer) -> None:
    class Stripping(ByteTokenizer):
        strips_leading_space = True

    ids = list(b"  a b")
    alone = IncrementalDetokenizer(TokenPieces(Stripping()))
    assert "".join(map(alone.push, ids)) == " a b"
    continued = IncrementalDetokenizer(TokenPieces(Stripping()), prompt_ids=[65])
    assert "".join(map(continued.push, ids)) == "  a b"
    answering = IncrementalDetokenizer(TokenPieces(ByteTokenizer()), prompt_ids=[65], strip_leading_space=True)
    assert "".join(map(answering.push, ids)) == " a b"
    assert "".join(stream(fallback, fallback.encode(" the"))) == " the"


def test_special_tokens_that_are_kept() -> None:
    ids = [97, 256, 98, 257]
    detokenizer = IncrementalDetokenizer(TokenPieces(ByteTokenizer(), keep={256}))
    assert "".join(map(detokenizer.push, ids)) == "a<bos>b"


def test_a_piece_is_looked_up_once_for_all_who_share_it_and_bytes_stay_with_their_own() -> None:
    asked: list[int] = []

    class Counting(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            asked.append(token_id)
            return super().token_bytes(token_id)

    pieces = TokenPieces(Counting())
    one, other = (IncrementalDetokenizer(pieces) for _ in range(2))
    first, second = "é".encode()
    assert [one.push(first), other.push(97), one.push(97), other.push(first), other.push(second), one.push(98)] == [
        *("", "a", "\ufffda", "", "é", "b")
    ]
    assert asked == [first, 97, second, 98]
