"""The rows that a step samples, and when they are recognised as those of the step before."""

from inference_server.core.plan import StepPlan
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.token_rows import SamplingRows


def test_rows_that_go_on_decoding_keep_the_list_of_their_slots() -> None:
    one, two = (ScheduledRequest(str(slot), [1, 2], SamplingParams(), 0.0, slot=slot) for slot in (3, 1))
    first = SamplingRows.of(StepPlan(1, [one, two], [0, 0], [2, 2], [True, True]), [0, 1])
    second = SamplingRows.of(StepPlan(2, [one, two], [2, 2], [1, 1], [True, True], num_decodes=2), [0, 1], first)
    assert second.slots is first.slots
    assert (second.slots, second.positions) == ([3, 1], [3, 3])
    alone = SamplingRows.of(StepPlan(3, [two], [3], [1], [True], num_decodes=1), [0], second)
    assert alone.slots == [1]
    two.slot = 0  # it was preempted, and now computes its last token again among the same rows
    back = SamplingRows.of(StepPlan(4, [one, two], [3, 3], [1, 1], [True, True], num_decodes=1), [0, 1], second)
    assert back.slots == [3, 0]
