"""Which deltas a hand-over takes, and what they hold at that time."""

from collections.abc import Iterator

import pytest

from inference_server.core.outputs import OutputDelta
from inference_server.engine.outbox import MERGE_ABOVE, MERGE_S, Outbox

STEP_S = MERGE_S / 5


def steps(outbox: Outbox, rows: int, number: int) -> Iterator[dict[str, OutputDelta]]:
    """Yield the hand-overs of `number` steps. In each step, every row says the step's number."""
    for step in range(number):
        for row in range(rows):
            outbox.delta(f"r{row}").text += f"{step},"
        yield outbox.take(1.0 + STEP_S * step)


@pytest.mark.parametrize(("rows", "crowded"), [(MERGE_ABOVE, False), (MERGE_ABOVE + 1, True)])
def test_deltas_are_merged_above_64_rows_alone(rows: int, crowded: bool) -> None:
    outbox = Outbox()
    first, *later = steps(outbox, rows, 6)
    assert len(first) == rows, "there was no hand-over for long before"
    assert all(len(taken) < rows / 4 if crowded else len(taken) == rows for taken in later)
    assert {delta.text for delta in later[-1].values()} == {"1,2,3,4,5," if crowded else "5,"}


def test_every_row_gets_its_share_evenly_and_in_time() -> None:
    outbox, said = Outbox(), dict.fromkeys((f"r{row}" for row in range(200)), "")
    counts = []
    for number, taken in enumerate(steps(outbox, 200, 40)):
        counts.append(len(taken))
        for request_id, delta in taken.items():
            said[request_id] += delta.text
            assert delta.text.endswith(f"{number},")
            assert delta.text.count(",") <= 6, "one step longer than MERGE_S"
    assert set(counts[1:]) <= {39, 40}, "a fifth of the rows after each step"
    for request_id, delta in outbox.take(9.0, flush=True).items():
        said[request_id] += delta.text
    assert set(said.values()) == {"".join(f"{step}," for step in range(40))}


def test_first_and_last_deltas_do_not_wait() -> None:
    outbox = Outbox()
    list(steps(outbox, 100, 2))
    outbox.delta("new").text += "first"
    outbox.hurry("new")
    outbox.hurry("r99")
    taken = outbox.take(1.0 + STEP_S)
    assert set(taken) == {"new", "r99"}
    assert taken["r99"].text == "1,"


def test_slow_steps_and_a_flush_take_everything() -> None:
    outbox = Outbox()
    list(steps(outbox, 100, 2))
    assert len(outbox.take(1.0 + STEP_S + MERGE_S)) == 80
    outbox.delta("r0")
    assert list(outbox.take(1.0, flush=True)) == ["r0"]
