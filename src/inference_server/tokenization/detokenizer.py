"""Token ids to text as they come, for one generation: constant work per token, never half a character."""

import codecs
from collections.abc import Container, Sequence

from inference_server.tokenization.base import TokenizerLike


class TokenPieces(dict[int, str | bytes]):
    """What each token adds to a text: characters, or bytes where these are no whole ones. The vocabulary is asked once a token.

    Special tokens add nothing, but for those in `keep`. For all generations that agree on these.
    """

    def __init__(self, tokenizer: TokenizerLike, skip_special_tokens: bool = True, keep: Container[int] = ()) -> None:
        super().__init__()
        self.strips_leading_space = tokenizer.strips_leading_space
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._keep = keep

    def __missing__(self, token_id: int) -> str | bytes:
        skips = self._skip_special and self._tokenizer.is_special(token_id) and token_id not in self._keep
        data = b"" if skips else self._tokenizer.token_bytes(token_id)
        try:
            piece: str | bytes = data.decode()
        except UnicodeDecodeError:
            piece = data
        self[token_id] = piece
        return piece


class IncrementalDetokenizer:
    """Emits text once its bytes form whole characters.

    The concatenation of all `push` results and `flush` equals `tokenizer.decode` of all ids. With `prompt_ids` (any tail of the
    prompt will do) the text continues one, so its leading space is kept; `strip_leading_space` drops it all the same.
    """

    def __init__(self, pieces: TokenPieces, prompt_ids: Sequence[int] = (), strip_leading_space: bool = False) -> None:
        self._pieces = pieces
        self._strip_space = strip_leading_space or (pieces.strips_leading_space and not prompt_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside = False  # a character that is not whole

    def push(self, token_id: int) -> str:
        """The characters completed by this token; empty while a character is still open."""
        piece = self._pieces[token_id]
        if self._inside or isinstance(piece, bytes):
            piece = self._decoder.decode(piece if isinstance(piece, bytes) else piece.encode())
            self._inside = self._decoder.getstate()[0] != b""
        return self._strip(piece) if self._strip_space else piece

    def flush(self) -> str:
        """The end of the text: an unfinished character becomes U+FFFD."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        if text and self._strip_space:
            self._strip_space = False
            return text.removeprefix(" ")
        return text
