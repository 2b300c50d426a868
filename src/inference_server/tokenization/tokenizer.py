"""The tokenizer of a Hugging Face folder, over the `tokenizers` library, and a byte tokenizer that needs no files.

Decoding goes through the bytes of each token, so that whole and incremental decoding agree by construction; on valid UTF-8
it gives what the library's own `decode` gives.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any, Self

import tokenizers

from inference_server.tokenization.errors import TokenizerError
from inference_server.tokenization.token_bytes import PieceToBytes, piece_decoder, strips_leading_space

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """See `TokenizerLike` for the contract."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        piece_to_bytes: PieceToBytes,
        special_tokens: Mapping[str, str],
        eos_token_ids: tuple[int, ...],
        adds_bos: bool | None = None,
        strips_leading_space: bool = False,
    ) -> None:
        """`adds_bos=None` leaves the begin-of-sequence token to the post-processor of `inner`."""
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._piece_to_bytes = piece_to_bytes
        self.special_tokens = special_tokens
        self.eos_token_ids = eos_token_ids
        self.strips_leading_space = strips_leading_space
        self.vocab_size: int = inner.get_vocab_size(with_added_tokens=True)
        bos = special_tokens.get("bos_token")
        self.bos_token_id: int | None = None if bos is None else inner.token_to_id(bos)
        self._special_ids = frozenset(eos_token_ids).union(
            (index for index, token in inner.get_added_tokens_decoder().items() if token.special),
            () if self.bos_token_id is None else (self.bos_token_id,),
        )
        if adds_bos is None:
            adds_bos = self.bos_token_id in inner.encode("").ids
        self._prefix = [self.bos_token_id] if adds_bos and self.bos_token_id is not None else []

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read `tokenizer.json` and the special tokens beside it. Raises `TokenizerError`."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{folder}: no tokenizer.json")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
            # the library hides the decoder's parameters: its state is their JSON form
            decoder = None if inner.decoder is None else json.loads(inner.decoder.__getstate__())
            configs = {name: _read_json(folder / name) for name in ("tokenizer_config.json", "generation_config.json", "config.json")}
            config = configs["tokenizer_config.json"]
            special = {name: text for name in _NAMED_TOKENS if (text := _token_text(name, config.get(name))) is not None}
            eos_token_ids = _eos_ids(inner, special, configs)
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{folder}: the tokenizer cannot be read ({error})") from error
        adds_bos = config.get("add_bos_token")
        return cls(
            inner,
            piece_decoder(decoder),
            special,
            eos_token_ids,
            adds_bos if isinstance(adds_bos, bool) else None,
            strips_leading_space(decoder),
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        # unlike `encode`, a batch lets go of the interpreter meanwhile: the event loop and the engine run on
        ids: list[int] = self._inner.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not (add_special_tokens and self._prefix):
            return ids
        return self._prefix + list(dropwhile(lambda index: index == self.bos_token_id, ids))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = (index for index in ids if not (skip_special_tokens and self.is_special(index)))
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._inner.id_to_token(token_id)
        return b"" if piece is None else self._piece_to_bytes(piece)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids


class ByteTokenizer:
    """One id a byte, then begin and end of sequence: for models that have no vocabulary. Ids beyond are spelled out, as `<258>`."""

    bos_token_id = 256
    eos_token_ids = (257,)
    special_tokens: Mapping[str, str] = {"bos_token": "<bos>", "eos_token": "<eos>"}
    strips_leading_space = False

    def __init__(self, vocab_size: int = 258) -> None:
        """Raises `TokenizerError` if the bytes do not fit."""
        if vocab_size < 258:
            raise TokenizerError(f"a vocabulary of {vocab_size} does not hold the 256 bytes, begin and end of sequence")
        self.vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        body = text.removeprefix("<bos>")
        bos = add_special_tokens or body != text
        return [self.bos_token_id] * bos + list(body.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = (index for index in ids if not (skip_special_tokens and self.is_special(index)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < 256:
            return bytes([token_id])
        if not 0 <= token_id < self.vocab_size:
            return b""
        return {256: b"<bos>", 257: b"<eos>"}.get(token_id, b"<%d>" % token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id in (256, 257)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def _token_text(name: str, token: Any) -> str | None:
    """tokenizer_config.json spells a token as text or as a serialised `AddedToken`. Raises ValueError."""
    text = token.get("content") if isinstance(token, dict) else token
    if not (token is None or isinstance(text, str)):
        raise ValueError(f"{name} is no text")
    return text


def _eos_ids(inner: tokenizers.Tokenizer, special: Mapping[str, str], configs: Mapping[str, dict[str, Any]]) -> tuple[int, ...]:
    """The union of what the folder's files call end of sequence, in order of authority. Raises ValueError."""
    model = configs["config.json"]
    found: list[int] = []
    for value in (
        configs["generation_config.json"].get("eos_token_id"),
        model.get("eos_token_id", (model.get("text_config") or {}).get("eos_token_id")),
        inner.token_to_id(special["eos_token"]) if "eos_token" in special else None,
    ):
        found += value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(index) is int for index in found):
        raise ValueError("eos_token_id is no token id")
    return tuple(dict.fromkeys(found))
