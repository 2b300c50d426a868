"""The tokenizer rebuilt from a GGUF vocabulary, loaded by the tokenizers library."""

import json

import pytest
from tiny_gguf import vocabulary
from tokenizers import Tokenizer

from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.gguf_tokenizer import build_tokenizer_json


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(build_tokenizer_json(vocabulary())))


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=False).tokens


def test_merges_are_all_splits_in_order_of_score() -> None:
    merges = build_tokenizer_json(vocabulary())["model"]["merges"]
    assert merges[:4] == [["\n\n", "\n"], ["▁▁", "▁"], ["\n", "\n\n"], ["▁", "▁▁"]]
    assert merges[6:] == [
        ["t", "h"],
        ["▁", "th"],
        ["h", "e"],
        ["▁th", "e"],
        ["▁", "the"],
        ["i", "n"],
        ["th", "e"],
        ["t", "he"],
        ["in", "g"],
        ["▁", "a"],
    ]


def test_merging_follows_the_scores(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, "the thing in") == ["the", "▁th", "ing", "▁", "in"]


def test_bytes_stand_in_for_unknown_characters(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, "aß日") == ["a", "<0xC3>", "<0x9F>", "日"]
    assert tokenizer.decode(tokenizer.encode("aß日 é").ids) == "aß日 é"


def test_runs_of_white_space_are_pieces(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, "a   b\n\n\nc") == ["a", "▁▁▁", "b", "\n\n\n", "c"]


def test_bos_comes_first_and_control_tokens_are_special(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").tokens == ["<bos>"]
    assert tokenizer.encode("a<eos>").tokens == ["<bos>", "a", "<eos>"]
    assert tokenizer.decode(tokenizer.encode("a<eos>\n\n").ids) == "a\n\n"


def test_other_vocabularies_are_refused() -> None:
    with pytest.raises(CheckpointError, match="'gpt2' is not supported"):
        build_tokenizer_json(vocabulary() | {"tokenizer.ggml.model": "gpt2"})
    incomplete = {key: value for key, value in vocabulary().items() if not key.endswith("scores")}
    with pytest.raises(CheckpointError, match=r"lacks tokenizer\.ggml\.scores"):
        build_tokenizer_json(incomplete)
    with pytest.raises(CheckpointError, match="inconsistent"):
        build_tokenizer_json(vocabulary() | {"tokenizer.ggml.scores": [0.0]})
