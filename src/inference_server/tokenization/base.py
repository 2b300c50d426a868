"""What the server needs from a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class TokenizerLike(Protocol):
    """Text to ids and back. Implementations are immutable and safe to share between threads."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Named special tokens as text, such as `bos_token` → `<bos>`, for chat templates."""
        ...

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text's first space is an artefact of the vocabulary and is dropped by `decode`."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. With special tokens, a model that wants a begin-of-sequence token gets exactly one,
        also for an empty text or one that spells it out."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`. Bytes that are no UTF-8 become U+FFFD; ids outside the vocabulary are empty."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; empty outside the vocabulary."""
        ...

    def is_special(self, token_id: int) -> bool: ...
