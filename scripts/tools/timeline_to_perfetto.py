"""Turn the files of a timeline (`TIMELINE_DIR`) into one trace that ui.perfetto.dev and chrome://tracing open.

The trace has three processes. The first has a track for each phase of the engine, and counters of running and waiting requests and of KV
blocks in use. The second has a track for each slot of the batch, with the requests that had it, the pieces of their prompts and their
decoding. The third has the waits in the queue. A line that a killed server did not finish is left out and counted.

    python scripts/tools/timeline_to_perfetto.py timeline/*.jsonl -o trace.json
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
PHASES = ("schedule", "launch", "sample", "collect", "output")
COUNTERS = ("running", "waiting", "kv_blocks")
ENGINE, SLOTS, QUEUE = 1, 2, 3


@dataclass
class Trace:
    """The trace so far. `add` has to be called with events in the order of time.

    drawn: what has been drawn, except requests. requests: those in slots, apart because they go before what is inside them.
    stays: slot and start of each request that has a slot. slots: the request in each slot. waits: when a preempted request began to wait.
    prefills: of the steps that were planned and not collected yet, when they were planned and the pieces of prompts in them.
    collected: the end of the latest wait for a step. last: the latest time of any event.
    """

    drawn: list[Event] = field(default_factory=list)
    requests: list[Event] = field(default_factory=list)
    stays: dict[str, tuple[int, int]] = field(default_factory=dict)
    slots: dict[int, str] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    prefills: dict[int, tuple[int, list[list[int]]]] = field(default_factory=dict)
    collected: int = 0
    last: int = 0

    def add(self, event: Event) -> None:
        ts, request = event["ts"], event.get("request", "")
        self.last = max(self.last, ts + event.get("dur", 0))
        match event["event"]:
            case "admit":
                self.stays[request], self.slots[event["slot"]] = (event["slot"], ts), request
                self._wait(request, self.waits.pop(request, ts), ts)
            case "hold":
                self._draw("i", QUEUE, 0, f"{event['gate']} holds {request}", ts, s="p")
            case "preempt":
                self.waits[request] = ts
                self._leave(request, ts, {"reason": "preempted"})
            case "end":
                self._wait(request, event["arrival"], event["admitted"] or ts)
                self._wait(request, self.waits.pop(request, ts), ts)
                self._leave(request, ts, {name: value for name, value in event.items() if name not in ("event", "ts")})
            case phase if phase in PHASES:
                self._phase(phase, event)

    def finish(self) -> dict[str, Any]:
        """The trace as JSON. Requests that still have a slot keep it until the end."""
        for request in list(self.stays):
            self._leave(request, self.last, {"reason": "open"})
        tracks = {(ENGINE, number): phase for number, phase in enumerate(PHASES, 1)}
        tracks |= {(SLOTS, event["tid"]): f"slot {event['tid']}" for event in self.requests}
        names = [_name("process_name", pid, 0, name) for pid, name in ((ENGINE, "engine"), (SLOTS, "slots"), (QUEUE, "queue"))]
        names += [_name("thread_name", pid, tid, name) for (pid, tid), name in sorted(tracks.items())]
        drawn = sorted(self.requests + self.drawn, key=lambda event: (event["ts"], -event.get("dur", 0)))
        return {"displayTimeUnit": "ms", "traceEvents": names + drawn}

    def _phase(self, phase: str, event: Event) -> None:
        ts, dur, step = event["ts"], event["dur"], event["step"]
        details = {name: value for name, value in event.items() if name not in ("event", "ts", "dur")}
        self._draw("X", ENGINE, PHASES.index(phase) + 1, f"{phase} {step}", ts, dur=dur, args=details)
        if phase == "schedule":
            self.prefills[step] = ts, event["prefills"]
        elif phase == "collect":
            self._draw_prefills(step, ts + dur)
        elif phase == "output":
            for name in COUNTERS:
                self._draw("C", ENGINE, 0, name, ts, args={name: event[name]})

    def _draw_prefills(self, step: int, end: int) -> None:
        """Draw a step's pieces of prompts, from its plan, or from the end of the step before if that was later. A request that has left its
        slot meanwhile is left out.
        """
        planned, chunks = self.prefills.pop(step, (end, []))
        start, self.collected = max(planned, self.collected), end
        for slot, position, tokens in chunks:
            request = self.slots.get(slot, "")
            if request in self.stays and self.stays[request][1] <= start:
                self._draw("X", SLOTS, slot, f"prefill {tokens}", start, dur=end - start, args={"step": step, "position": position})

    def _leave(self, request: str, ts: int, details: Event) -> None:
        if request not in self.stays:
            return
        slot, start = self.stays.pop(request)
        if self.slots.get(slot) == request:
            del self.slots[slot]
        self.requests.append({"ph": "X", "pid": SLOTS, "tid": slot, "name": request, "ts": start, "dur": ts - start, "args": details})
        first_token = details.get("first_token")
        if first_token is not None and first_token >= start:
            self._draw("X", SLOTS, slot, "decode", first_token, dur=ts - first_token)

    def _wait(self, request: str, start: int, end: int) -> None:
        """Draw a wait. Waits overlap, so they are asynchronous: a pair of events with one id."""
        for kind, ts in (("b", start), ("e", end)) if start < end else ():
            self._draw(kind, QUEUE, 0, request, ts, cat="queue", id=request)

    def _draw(self, kind: str, pid: int, tid: int, name: str, ts: int, **more: Any) -> None:
        self.drawn.append({"ph": kind, "pid": pid, "tid": tid, "name": name, "ts": ts, **more})


def _name(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def read(paths: Iterable[Path]) -> tuple[list[Event], int]:
    """The events of all files in the order of time, and how many lines are not whole."""
    events: list[Event] = []
    num_broken = 0
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                num_broken += 1
    return sorted(events, key=lambda event: event["ts"]), num_broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="the timeline's files, all of one run")
    parser.add_argument("-o", "--out", type=Path, default=Path("trace.json"))
    arguments = parser.parse_args()
    events, num_broken = read(arguments.files)
    trace = Trace()
    for event in events:
        trace.add(event)
    arguments.out.write_text(json.dumps(trace.finish()), encoding="utf-8")
    print(f"{arguments.out}: {len(events)} events; {num_broken} lines were not whole", file=sys.stderr)


if __name__ == "__main__":
    main()
