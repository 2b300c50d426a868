"""Token ids to text as they come, for one generation: constant work per token, never half a character."""

import codecs
from collections.abc import Container, Sequence

from inference_server.tokenization.base import TokenizerLike


class IncrementalDetokenizer:
    """Collects bytes and emits them as text once they form whole characters.

    The concatenation of all `push` results and `flush` equals `tokenizer.decode` of all ids, however they were split. With
    `prompt_ids` (any tail of the prompt will do) the text continues one, so its leading space is kept;
    `strip_leading_space` drops it all the same. Special tokens are left out, but for those in `keep`.
    """

    def __init__(
        self,
        tokenizer: TokenizerLike,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        strip_leading_space: bool = False,
        keep: Container[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._keep = keep
        self._strip_space = strip_leading_space or (tokenizer.strips_leading_space and not prompt_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """The characters completed by these tokens; empty while a character is still open."""
        tokenizer = self._tokenizer
        data = b"".join([tokenizer.token_bytes(i) for i in token_ids if not self._skips(i)])
        return self._strip(self._decoder.decode(data))

    def flush(self) -> str:
        """The end of the text: an unfinished character becomes U+FFFD."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _skips(self, token_id: int) -> bool:
        return self._skip_special and self._tokenizer.is_special(token_id) and token_id not in self._keep

    def _strip(self, text: str) -> str:
        if text and self._strip_space:
            self._strip_space = False
            return text.removeprefix(" ")
        return text
