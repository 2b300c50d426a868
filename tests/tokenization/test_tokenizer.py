"""Encoding and decoding against the tokenizers library, for both families of vocabularies."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from small_tokenizers import TEXTS
from tokenizers import decoders

from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.errors import TokenizerError
from inference_server.tokenization.tokenizer import ByteTokenizer, Tokenizer


@pytest.mark.parametrize("name", ["fallback", "level"])
@pytest.mark.parametrize("skip", [True, False])
def test_encode_and_decode_match_the_library(name: str, skip: bool, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    library = tokenizers.Tokenizer.from_file(str(request.getfixturevalue(f"{name}_folder") / "tokenizer.json"))
    library.no_truncation()
    for text in [*TEXTS, "a tool call\n\n<eos>"]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


def test_bos_comes_exactly_once(fallback: Tokenizer) -> None:
    bos, the = fallback.bos_token_id, fallback.encode("the", add_special_tokens=False)
    for text in ("the", "<bos>the", "<bos><bos>the"):
        assert fallback.encode(text) == [bos, *the]
    assert fallback.encode("") == [bos]
    assert fallback.encode("", add_special_tokens=False) == []
    assert fallback.encode("<bos>the", add_special_tokens=False) == [bos, *the]


def test_a_model_without_bos_gets_none(level: Tokenizer) -> None:
    assert level.bos_token_id is None
    assert level.encode("") == []
    assert level.encode("fox") == level.encode("fox", add_special_tokens=False)


def test_bos_is_taken_from_the_post_processor_where_the_config_is_silent(fallback_folder: Path, tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer.from_file(str(fallback_folder / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<bos>"}')
    for post, expected in ((None, []), (tokenizers.processors.TemplateProcessing("<bos> $A", None, [("<bos>", 2)]), [2])):
        if post is not None:
            inner.post_processor = post
        inner.save(str(tmp_path / "tokenizer.json"))
        assert Tokenizer.from_folder(tmp_path).encode("") == expected


def test_stop_ids_are_the_union_of_the_files(fallback: Tokenizer, level: Tokenizer) -> None:
    end = fallback.encode("<end>", add_special_tokens=False)[0]
    assert fallback.eos_token_ids == (end, 1)
    assert level.eos_token_ids == tuple(level.encode("<eos>"))
    assert fallback.special_tokens["bos_token"] == "<bos>"


def test_special_ids_and_ids_outside_the_vocabulary(fallback: Tokenizer) -> None:
    assert fallback.is_special(2)
    assert not fallback.is_special(fallback.encode("\n\n")[1])
    assert fallback.token_bytes(fallback.vocab_size + 5) == b""
    assert fallback.decode([fallback.vocab_size + 5]) == ""


def test_token_bytes(fallback: Tokenizer, level: Tokenizer) -> None:
    assert [fallback.token_bytes(i) for i in fallback.encode(" the日", add_special_tokens=False)] == [b" the", b"\xe6", b"\x97", b"\xa5"]
    ids = level.encode("ü tool call")
    assert b"".join(map(level.token_bytes, ids)) == "ü tool call".encode()


@pytest.mark.parametrize(
    ("decoder", "text"),
    [
        (decoders.Metaspace(), "the fox"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]), "the fox"),
        (decoders.Metaspace(prepend_scheme="never"), " the fox"),
    ],
)
def test_an_artificial_leading_space_is_dropped(decoder: decoders.Decoder, text: str, tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"▁the": 0, "▁fox": 1}, []))
    inner.decoder = decoder
    inner.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_folder(tmp_path).decode([0, 1]) == inner.decode([0, 1]) == text


@pytest.mark.alone
def test_a_long_text_does_not_hold_up_other_threads(fallback_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(fallback_folder)
    with ThreadPoolExecutor(1) as worker:
        longest, start = 0.0, time.monotonic()
        encoding = worker.submit(lambda: (time.sleep(0.05), tokenizer.encode("the quick brown fox " * 100_000)))
        while not encoding.done():
            before = time.monotonic()
            time.sleep(0.001)
            longest = max(longest, time.monotonic() - before)
        assert longest < (time.monotonic() - start) / 2


def test_broken_folders_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    for name in ("tokenizer_config.json", "generation_config.json", "config.json"):
        (tmp_path / name).write_text("[]")
        with pytest.raises(TokenizerError, match=f"{name} is not a JSON object"):
            Tokenizer.from_folder(tmp_path)
        (tmp_path / name).unlink()


def test_byte_tokenizer_round_trips() -> None:
    tokenizer: TokenizerLike = ByteTokenizer()
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<bos>é") == tokenizer.encode("é") == [256, 0xC3, 0xA9]
    assert tokenizer.decode([65, 257]) == "A"
    assert tokenizer.decode([65, 257], skip_special_tokens=False) == "A<eos>"


def test_byte_tokenizer_spells_out_the_rest_of_a_vocabulary() -> None:
    assert ByteTokenizer(300).decode([65, 258, 299, 300, -1]) == "A<258><299>"
    assert ByteTokenizer().token_bytes(258) == b""
    with pytest.raises(TokenizerError, match="a vocabulary of 257 does not hold"):
        ByteTokenizer(257)
