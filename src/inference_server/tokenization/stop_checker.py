"""Stop strings over streamed text, by the automaton of Aho and Corasick (1975): one step per character, however it is chunked."""

from collections import deque
from collections.abc import Sequence


class StopChecker:
    """Passes text through until a stop string is complete.

    Held back is only the longest suffix that could still start a stop string. The stop string whose end comes first wins, the
    longest where several end together; the text is cut where it begins, or where it ends with `include_stop`.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """Raises `ValueError` for an empty stop string."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._include_stop = include_stop
        self._held = ""
        self._node = 0
        self._stopped = False
        self._next, self._fail, self._depth, self._match = _automaton(stops)

    def push(self, text: str, may_stop: bool = True) -> tuple[str, bool]:
        """Take more text; return what is safe to emit and whether a stop string is complete. After that, nothing more comes.

        may_stop: False lets a stop string that ends in this text pass.
        """
        if self._stopped:
            return "", True
        text, node = self._held + text, self._node
        for index in range(len(self._held), len(text)):
            character = text[index]
            while node and character not in self._next[node]:
                node = self._fail[node]
            node = self._next[node].get(character, 0)
            if may_stop and (length := self._match[node]):
                self._stopped, self._held = True, ""
                end = index + 1
                return text[: end if self._include_stop else end - length], True
        self._node = node
        safe = len(text) - self._depth[node]
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """The end of the text: what was held back."""
        held, self._held, self._node = self._held, "", 0
        return held


def _automaton(stops: Sequence[str]) -> tuple[list[dict[str, int]], list[int], list[int], list[int]]:
    """Per node: its transitions, the node of its longest proper suffix, its depth, and the length of the longest stop string
    that ends there (0 for none)."""
    following: list[dict[str, int]] = [{}]
    depth, match = [0], [0]
    for stop in stops:
        node = 0
        for character in stop:
            if character not in following[node]:
                following[node][character] = len(following)
                following.append({})
                depth.append(depth[node] + 1)
                match.append(0)
            node = following[node][character]
        match[node] = len(stop)
    fail = [0] * len(following)
    queue = deque(following[0].values())
    while queue:
        node = queue.popleft()
        match[node] = match[node] or match[fail[node]]
        for character, child in following[node].items():
            link = fail[node]
            while link and character not in following[link]:
                link = fail[link]
            fail[child] = following[link].get(character, 0)
            queue.append(child)
    return following, fail, depth, match
