"""The raw bytes behind a vocabulary piece, for the two families of vocabularies in use.

Byte-level BPE (GPT-2, Qwen) spells each byte as one printable character; SentencePiece-like vocabularies (Gemma, Llama)
spell a space as ▁ and a byte outside the vocabulary as `<0xAB>`.
"""

import re
from collections.abc import Callable
from typing import Any

PieceToBytes = Callable[[str], bytes]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_alphabet() -> dict[str, int]:
    """Character → byte, as GPT-2's `bytes_to_unicode`: printable Latin-1 stands for itself, other bytes for U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in sorted(printable)} | {chr(256 + i): byte for i, byte in enumerate(others)}


def piece_decoder(decoder: dict[str, Any] | None) -> PieceToBytes:
    """The piece-to-bytes function that matches the `decoder` entry of a tokenizer.json."""
    steps = _steps(decoder)
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    metaspace = "Metaspace" in kinds or any(step["type"] == "Replace" and step.get("content") == " " for step in steps)
    return _metaspace if metaspace else _plain


def strips_leading_space(decoder: dict[str, Any] | None) -> bool:
    """Whether `decoder` drops one space at the start of a text."""
    return any(
        (step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in _steps(decoder)
    )


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _plain(piece: str) -> bytes:
    return piece.encode()


def _metaspace(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace("▁", " ").encode()


_ALPHABET = byte_level_alphabet()


def _byte_level(piece: str) -> bytes:
    """Added tokens are literal text; where one has a character outside the alphabet, the whole piece is taken literally."""
    try:
        return bytes([_ALPHABET[character] for character in piece])
    except KeyError:
        return piece.encode()
