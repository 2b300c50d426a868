"""The queue's order under arrivals, priorities, preemption and removal."""

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.scheduler.policies import FCFSPolicy, SchedulingPolicy


def make_request(name: str, arrival: float, priority: int = 0) -> ScheduledRequest:
    return ScheduledRequest(name, [1], SamplingParams(), arrival_time=arrival, priority=priority)


def names(policy: FCFSPolicy) -> list[str]:
    return [request.request_id for request in policy]


def served(policy: SchedulingPolicy) -> list[str]:
    """The waiting requests in the order in which they are admitted."""
    order = []
    while (request := policy.peek()) is not None:
        policy.start(request)
        order.append(request.request_id)
    return order


def test_order_is_priority_then_arrival_then_queueing() -> None:
    policy = FCFSPolicy()
    for name, arrival, priority in [("late", 9, 0), ("first", 1, 0), ("second", 1, 0), ("urgent", 10, -1), ("patient", 0, 5)]:
        policy.push(make_request(name, arrival, priority))
    assert names(policy) == ["urgent", "first", "second", "late", "patient"]
    head = policy.peek()
    assert head is not None and head.request_id == "urgent"
    assert served(policy) == ["urgent", "first", "second", "late", "patient"]
    assert policy.peek() is None and len(policy) == 0


def test_a_preempted_request_goes_to_the_head_of_its_priority() -> None:
    policy = FCFSPolicy()
    for name, arrival, priority in [("a", 1, 0), ("b", 2, 0), ("urgent", 3, -1)]:
        policy.push(make_request(name, arrival, priority))
    policy.requeue(make_request("younger", 6))
    policy.requeue(make_request("older", 5))
    assert names(policy) == ["urgent", "older", "younger", "a", "b"]


def test_remove_takes_exactly_the_one_and_only_once() -> None:
    policy = FCFSPolicy()
    requests = [make_request(str(i), arrival=1.0) for i in range(5)]
    for request in requests:
        policy.push(request)
    assert policy.end(requests[3])
    assert not policy.end(requests[3])
    assert names(policy) == ["0", "1", "2", "4"]
    policy.start(requests[0])
    assert not policy.end(requests[0])
    assert len(policy) == 3


def test_rank_puts_the_latest_of_the_lowest_priority_last() -> None:
    policy = FCFSPolicy()
    requests = [make_request("a", 1), make_request("b", 2), make_request("urgent", 3, -1), make_request("patient", 0, 1)]
    assert [r.request_id for r in sorted(requests, key=policy.rank)] == ["urgent", "a", "b", "patient"]
