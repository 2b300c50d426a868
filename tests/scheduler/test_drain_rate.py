"""The measured rate of the queue, and the wait that it predicts."""

import pytest
from virtual_server import VirtualServer, make_request

from inference_server.core.options import PolicyName, SchedulerOptions
from inference_server.scheduler.drain_rate import DrainRate


def test_only_time_with_a_queue_counts() -> None:
    rate = DrainRate()
    for second in range(100):
        rate.observe(float(second), 1, 10, num_waiting=0)
    assert rate.tokens_per_s == 0
    rate.observe(100.0, 8, 80, num_waiting=5)
    assert rate.tokens_per_s == 0
    for tenth in range(1, 21):
        rate.observe(100 + tenth / 10, 1, 10, num_waiting=5)
    assert rate.tokens_per_s == pytest.approx(100)


def test_it_follows_a_change_and_needs_a_few_admissions() -> None:
    rate = DrainRate()
    now = 0.0
    for interval, number in ((0.1, 7), (0.1, 100), (0.4, 200)):
        for _ in range(number):
            rate.observe(now, 1, 10, num_waiting=1)
            now += interval
        if number == 7:
            assert rate.tokens_per_s == 0
    assert rate.tokens_per_s == pytest.approx(25, rel=0.02)


@pytest.mark.parametrize("policy", PolicyName)
def test_the_predicted_wait_is_the_wait(policy: PolicyName) -> None:
    options = SchedulerOptions(max_batch_size=4, max_batched_tokens=256, scheduling_policy=policy)
    virtual = VirtualServer(options)
    for index in range(120):
        virtual.add(make_request(f"a{index}", 20, 10 + 10 * (index % 4), key="A"))
    virtual.run(until=lambda: virtual.now > 3)
    of_a, of_b = (make_request(f"late {key}", 20, 20, key=key, arrival=virtual.now) for key in "AB")
    predicted = {request: virtual.scheduler.predicted_wait_s(request) for request in (of_a, of_b)}
    for request in predicted:
        virtual.add(request)
    virtual.run()
    waits = {request: (request.admitted_time or 0.0) - request.arrival_time for request in predicted}
    assert predicted[of_a] == pytest.approx(waits[of_a], rel=0.25)
    assert predicted[of_a] > 2
    assert (predicted[of_b] == 0) is (policy is PolicyName.FAIR)
    assert waits[of_b] < 0.2 or policy is PolicyName.FCFS
