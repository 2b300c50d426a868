"""The timeline of an engine: the exact events of a scripted run, and what the tool for Perfetto makes of long runs."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engine_fakes import EchoBackend, VirtualClock, loaded, run_dry, scheduled, scheduler_of

from inference_server.core.options import EngineOptions
from inference_server.core.phases import Phase
from inference_server.core.plan import StepPlan
from inference_server.engine.engine import Engine
from inference_server.engine.loaded_model import LoadedModel
from inference_server.observability.batch_writer import BatchWriter
from inference_server.observability.run import Run
from inference_server.observability.timeline import Timeline

TOOLS = Path(__file__).parents[2] / "scripts" / "tools"


def ticking(clock: VirtualClock, seconds: float) -> Callable[[StepPlan], None]:
    def tick(plan: StepPlan) -> None:
        clock.now += seconds

    return tick


def engine_with_timeline(folder: Path, max_batch_size: int, num_blocks: int = 256, overlap: bool = False) -> tuple[Engine, BatchWriter]:
    clock = VirtualClock()
    timeline = BatchWriter("timeline", Timeline(folder, Run("m", clock, started_at=0.0, epoch=-clock())))
    backend = EchoBackend(before_launch=ticking(clock, 0.01), before_collect=ticking(clock, 0.005))
    model = loaded(backend, scheduler_of(max_batch_size, num_blocks), overlap=overlap)
    engine = Engine(lambda: model, EngineOptions(), [timeline], clock)
    engine.load()
    return engine, timeline


def events_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()][1:]


def test_a_scripted_run_event_by_event(tmp_path: Path) -> None:
    engine, timeline = engine_with_timeline(tmp_path, max_batch_size=1)
    engine.add(scheduled("a", "r1"))
    engine.add(scheduled("b", "r2", max_tokens=1))
    run_dry(engine)
    timeline.close()

    def step(number: int, start: int, returned: tuple[int, int, int, int], **plan: Any) -> list[dict[str, Any]]:
        about = {"step": number}
        outcome = dict(zip(("returned", "waiting", "running", "kv_blocks"), returned, strict=True))
        return [
            {"event": "schedule", "ts": start, "dur": 0, **about, **plan},
            {"event": "launch", "ts": start, "dur": 10_000, **about},
            {"event": "sample", "ts": start + 10_000, "dur": 0, **about},
            {"event": "collect", "ts": start + 10_000, "dur": 5_000, **about},
            {"event": "output", "ts": start + 15_000, "dur": 0, **about, **outcome},
        ]

    def end(request: str, ts: int, reason: str, admitted: int, first_token: int, tokens: int) -> dict[str, Any]:
        times = {"arrival": 0, "admitted": admitted, "first_token": first_token}
        counts = {"prompt_tokens": 2, "cached_tokens": 0, "output_tokens": tokens}
        return {"event": "end", "ts": ts, "request": request, "trace": "", "reason": reason, "error": None, **times, **counts}

    prompt = {"kind": "prefill", "tokens": 2, "decodes": [], "prefills": [[0, 0, 2]]}
    assert events_in(tmp_path) == [
        {"event": "admit", "ts": 0, "step": 1, "request": "r1", "slot": 0},
        {"event": "hold", "ts": 0, "step": 1, "request": "r2", "gate": "slots"},
        *step(1, 0, (1, 1, 1, 1), **prompt),
        end("r1", 30_000, "stop", 0, 15_000, 2),
        *step(2, 15_000, (1, 1, 0, 0), kind="decode", tokens=1, decodes=[0], prefills=[]),
        end("r2", 45_000, "length", 30_000, 45_000, 1),
        {"event": "admit", "ts": 30_000, "step": 3, "request": "r2", "slot": 0},
        *step(3, 30_000, (1, 0, 0, 0), **prompt),
    ]


def run_at_random(folder: Path, overlap: bool) -> None:
    """Run more requests than slots, with more tokens than blocks hold; some leave early."""
    engine, timeline = engine_with_timeline(folder, max_batch_size=4, num_blocks=24, overlap=overlap)
    random = Random(0)
    for index in range(40):
        engine.add(scheduled("x" * random.randint(1, 30), f"r{index}", max_tokens=random.randint(1, 25)))
    for index in range(0, 40, 7):
        for _ in range(9):
            engine.step()
        engine.abort(f"r{index}")
    run_dry(engine)
    timeline.close()


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
def test_perfetto_gets_a_well_formed_trace_of_all_that_happened(
    tmp_path: Path, overlap: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_at_random(tmp_path / "timeline", overlap)
    happened = Counter(event["event"] for event in events_in(tmp_path / "timeline"))
    assert happened["preempt"] > 5
    files = sorted((tmp_path / "timeline").iterdir())
    with files[-1].open("a") as torn:
        torn.write('{"event": "sch')
    monkeypatch.syspath_prepend(TOOLS)
    import timeline_to_perfetto as tool

    monkeypatch.setattr("sys.argv", ["tool", *map(str, files), "-o", str(tmp_path / "trace.json")])
    tool.main()
    assert "1 lines were not whole" in capsys.readouterr().err
    file = json.loads((tmp_path / "trace.json").read_text())
    trace = file["traceEvents"]
    assert file == {"traceEvents": trace, "displayTimeUnit": "ms"}
    for event in trace:
        assert_valid(event)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    slices = [e for e in trace if e["ph"] == "X"]
    assert set(names.values()) == {*Phase, "slot 0", "slot 1", "slot 2", "slot 3"} == {names[e["pid"], e["tid"]] for e in slices}
    for track in names:
        assert_nested([e for e in slices if (e["pid"], e["tid"]) == track])
    drawn = Counter(e["name"].split()[0] for e in slices)
    assert {phase: drawn[phase] for phase in Phase} == {phase: happened[phase] for phase in Phase}
    assert sum(number for name, number in drawn.items() if name[0] == "r") == happened["admit"]
    assert [e["ts"] for e in trace if "ts" in e] == sorted(e["ts"] for e in trace if "ts" in e)
    counters = [e for e in trace if e["ph"] == "C"]
    assert {e["name"] for e in counters} == {"running", "waiting", "kv_blocks"}
    assert max(e["args"].get("running", 0) for e in counters) == 4
    begun, ended = (sorted((e["id"], e["ts"]) for e in trace if e["ph"] == kind) for kind in "be")
    assert len(begun) >= 36
    assert all(b[0] == e[0] and b[1] < e[1] for b, e in zip(begun, ended, strict=True))


WANTED = {  # what the Trace Event format requires of each kind of event, beside its name and its process
    "X": {"tid": int, "ts": int, "dur": int},
    "i": {"tid": int, "ts": int, "s": str},
    "C": {"ts": int, "args": dict},
    "b": {"ts": int, "cat": str, "id": str},
    "e": {"ts": int, "cat": str, "id": str},
    "M": {"args": dict},
}


def assert_valid(event: dict[str, Any]) -> None:
    for field, kind in {"name": str, "pid": int, **WANTED[event["ph"]]}.items():
        assert type(event[field]) is kind, event
    assert event.get("ts", 0) >= 0 <= event.get("dur", 0), event
    assert event.get("s", "t") in "gpt", event
    if event["ph"] == "C":
        assert all(type(value) is int for value in event["args"].values()), event
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "thread_name") and type(event["args"]["name"]) is str, event


def assert_nested(slices: list[dict[str, Any]]) -> None:
    """Assert that each slice ends within the slice in which it began, as a track of Perfetto requires."""
    open_until: list[int] = []
    for one in slices:
        while open_until and open_until[-1] <= one["ts"]:
            open_until.pop()
        assert not open_until or one["ts"] + one["dur"] <= open_until[-1], one
        open_until.append(one["ts"] + one["dur"])
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(slices))


def test_profilers_see_each_phase_of_each_step_under_its_id() -> None:
    seen: list[str] = []

    @contextmanager
    def range_(name: str) -> Iterator[None]:
        seen.append(f"{name} begins")
        yield
        seen.append(f"{name} ends")

    def ranged(model: LoadedModel) -> LoadedModel:
        return replace(model, ranges=range_)

    engine = Engine(lambda: ranged(loaded(overlap=True)), EngineOptions(), [], VirtualClock())
    engine.load()
    engine.add(scheduled("ab", max_tokens=2))
    run_dry(engine)
    phases = ["schedule 1", "launch 1", "sample 1", "schedule 2", "launch 2", "sample 2", "collect 1", "output 1", "schedule 3"]
    expected = [f"{phase.replace(' ', ' step=')} {what}" for phase in [*phases, "collect 2", "output 2"] for what in ("begins", "ends")]
    assert seen[: len(expected)] == expected
