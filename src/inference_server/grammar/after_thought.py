"""`AnswerAfterThought`: a grammar that waits until the model has thought."""

from inference_server.core.grammar import CompiledGrammar, Constraint


class AnswerAfterThought:
    """A `CompiledGrammar`: `answer`, and before it a thought as `AfterThought` says."""

    def __init__(self, answer: CompiledGrammar, opener: int, closer: int, in_thought: bool) -> None:
        self._answer = answer
        self._opener = opener
        self._closer = closer
        self._in_thought = in_thought

    def start(self) -> "AfterThought":
        return AfterThought(self._answer.start(), self._opener, self._closer, self._in_thought)


class AfterThought:
    """A `Constraint` for an answer that may begin with a thought between the tokens `opener` and `closer`. `answer` applies only after it.

    in_thought: the prompt has opened the thought. Otherwise the model may open one as its first token, or not.
    """

    def __init__(self, answer: Constraint, opener: int, closer: int, in_thought: bool) -> None:
        self._answer = answer
        self._opener = opener
        self._closer = closer
        self._at_start = not in_thought
        self._in_thought = in_thought

    @property
    def mask(self) -> bytes | None:
        if self._in_thought:
            return None
        mask = self._answer.mask
        if not self._at_start or mask is None:
            return mask
        index, bit = divmod(self._opener, 8)
        return mask[:index] + bytes([mask[index] | 1 << bit]) + mask[index + 1 :]

    @property
    def finished(self) -> bool:
        return not self._in_thought and self._answer.finished

    def advance(self, token_id: int, num_left: int) -> None:
        if self._in_thought:
            self._in_thought = token_id != self._closer
        elif self._at_start and token_id == self._opener:
            self._in_thought = True
        else:
            self._answer.advance(token_id, num_left)
        self._at_start = False
