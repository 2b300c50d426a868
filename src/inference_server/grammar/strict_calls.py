"""Tool calls whose arguments must fit, in answers that may have no call: the grammar applies from the token that begins a call."""

from inference_server.core.grammar import CompiledGrammar, Constraint


class StrictCalls:
    """A `CompiledGrammar`. call: the grammar of one call, from the token `opener` on."""

    def __init__(self, call: CompiledGrammar, opener: int) -> None:
        self._call = call
        self._opener = opener

    def start(self) -> "FreeUntilCall":
        return FreeUntilCall(self._call, self._opener)


class FreeUntilCall:
    """A `Constraint`: any text, and as many calls as the model makes."""

    finished = False

    def __init__(self, call: CompiledGrammar, opener: int) -> None:
        self._call = call
        self._opener = opener
        self._open: Constraint | None = None

    @property
    def mask(self) -> bytes | None:
        return self._open.mask if self._open is not None else None

    def advance(self, token_id: int, num_left: int) -> None:
        if self._open is None:
            if token_id != self._opener:
                return
            self._open = self._call.start()
        self._open.advance(token_id, num_left)
        if self._open.finished:
            self._open = None
