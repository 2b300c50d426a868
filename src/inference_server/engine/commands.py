"""What other threads may ask of the engine thread. The inbox is first in, first out, so an `Abort` never overtakes its `Add`."""

from dataclasses import dataclass

from inference_server.core.request import ScheduledRequest


@dataclass(frozen=True, slots=True)
class Add:
    """Take over a request, and children that continue the same prompt; whoever sent them does not touch them again."""

    request: ScheduledRequest
    children: tuple[ScheduledRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request in whatever state it is. Ids are always fresh, so one that is unknown has ended already."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End every request and the thread."""


Command = Add | Abort | Stop
