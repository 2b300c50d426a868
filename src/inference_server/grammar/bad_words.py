"""`BadWords`: what an answer must not have, as vLLM's `bad_words`.

A word is the tokens by which the vocabulary spells it. Its last token is forbidden wherever the answer ends in the ones before; the same
letters spelled by other tokens are not.
"""

from collections.abc import Sequence
from functools import reduce

_WORD_BITS = 32


class BadWords:
    """A `CompiledGrammar`. spellings: the token ids of each word, none empty."""

    def __init__(self, spellings: Sequence[Sequence[int]], vocab_size: int) -> None:
        free = b"\xff" * (-(-vocab_size // _WORD_BITS) * _WORD_BITS // 8)
        self.mask = reduce(_without, (ids[0] for ids in spellings if len(ids) == 1), free)
        self.longer = [(tuple(ids[:-1]), ids[-1]) for ids in spellings if len(ids) > 1]
        self.num_remembered = max((len(before) for before, _ in self.longer), default=0)

    def start(self) -> "WithoutWords":
        return WithoutWords(self)


class WithoutWords:
    """A `Constraint`: any text that has none of the words."""

    finished = False

    def __init__(self, words: BadWords) -> None:
        self.mask: bytes | None = words.mask
        self._words = words
        self._latest: tuple[int, ...] = ()

    def advance(self, token_id: int, num_left: int) -> None:
        words = self._words
        if not words.longer:
            return
        self._latest = (*self._latest, token_id)[-words.num_remembered :]
        forbidden = [last for before, last in words.longer if self._latest[-len(before) :] == before]
        self.mask = reduce(_without, forbidden, words.mask)


def _without(mask: bytes, token_id: int) -> bytes:
    index, bit = divmod(token_id, 8)
    return mask[:index] + bytes([mask[index] & ~(1 << bit)]) + mask[index + 1 :]
