"""`ForkQueue`: requests that wait for another of the same prompt to compute it. Holds them, and decides nothing.

The one that computes is the parent; it may be queued, admitted or preempted. Its children hold no slot and no block.
"""

from collections.abc import Iterable, Iterator, KeysView

from inference_server.core.request import ScheduledRequest


class ForkQueue:
    """Children in the order in which they were put."""

    def __init__(self) -> None:
        self._children: dict[str, list[ScheduledRequest]] = {}
        self._parent_ids: dict[str, str] = {}

    def put(self, parent: ScheduledRequest, children: Iterable[ScheduledRequest]) -> None:
        for child in children:
            self._children.setdefault(parent.request_id, []).append(child)
            self._parent_ids[child.request_id] = parent.request_id

    def take(self, parent: ScheduledRequest) -> list[ScheduledRequest]:
        """Remove and return all children that wait for `parent`."""
        children = self._children.pop(parent.request_id, [])
        for child in children:
            del self._parent_ids[child.request_id]
        return children

    def remove(self, child: ScheduledRequest) -> None:
        """Does nothing if the child does not wait here."""
        parent_id = self._parent_ids.pop(child.request_id, None)
        if parent_id is None:
            return
        self._children[parent_id].remove(child)
        if not self._children[parent_id]:
            del self._children[parent_id]

    def children(self, parent: ScheduledRequest) -> list[ScheduledRequest]:
        return self._children.get(parent.request_id, [])

    @property
    def parent_ids(self) -> KeysView[str]:
        """Ids of the requests that others wait for."""
        return self._children.keys()

    def __len__(self) -> int:
        return len(self._parent_ids)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        for children in self._children.values():
            yield from children
