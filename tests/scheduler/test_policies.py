"""The queue's order under arrivals, priorities, preemption and removal; the counters of fairness keys."""

import hypothesis.strategies as st
from hypothesis import given, settings

from inference_server.core.request import RequestOrigin, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.scheduler.fair_policy import FairPolicy
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
    twins = [make_request("twin", 2), make_request("other twin", 2)]
    requests = [make_request("a", 1), *twins, make_request("urgent", 3, -1), make_request("patient", 0, 1)]
    for request in requests:
        policy.push(request)
        policy.start(request)
    assert [r.request_id for r in sorted(requests, key=policy.rank)] == ["urgent", "a", "twin", "other twin", "patient"]
    assert policy.rank(twins[0]) != policy.rank(twins[1])


def of_key(key: str, name: str, *, num_prompt: int = 1, arrival: float = 0.0, priority: int = 0) -> ScheduledRequest:
    return ScheduledRequest(name, [1] * num_prompt, SamplingParams(), arrival, RequestOrigin(fairness_key=key), priority=priority)


def counters(policy: FairPolicy) -> dict[str, int]:
    return {share.key: share.counter for share in policy._shares.values()}


def test_the_key_that_was_served_least_goes_first() -> None:
    policy = FairPolicy()
    for index in range(4):
        policy.push(of_key("A", f"a{index}", num_prompt=10))
    for index in range(2):
        policy.push(of_key("B", f"b{index}", num_prompt=25))
    assert served(policy) == ["a0", "b0", "a1", "a2", "b1", "a3"]


def test_returned_tokens_count_twice_as_much_as_prompt_tokens() -> None:
    policy = FairPolicy()
    running = of_key("A", "a0", num_prompt=10)
    policy.push(running)
    policy.start(running)
    policy.charge([running] * 5)
    assert counters(policy) == {"A": 20}


def test_the_statistics_are_of_the_keys_with_the_most_service() -> None:
    policy = FairPolicy()
    for index in range(30):
        request = of_key(f"k{index}", f"r{index}", num_prompt=index + 1)
        policy.push(request)
        policy.start(request)
    policy.push(of_key("k29", "waits"))
    top = policy.fairness(3)
    assert [share.key for share in top] == sorted(counters(policy), key=counters(policy).__getitem__, reverse=True)[:3]
    assert next((share.num_waiting, share.num_open) for share in top if share.key == "k29") == (1, 2)
    assert FCFSPolicy().fairness(3) == ()


def test_a_key_that_comes_back_is_lifted_to_the_least_of_those_that_wait() -> None:
    policy = FairPolicy()
    firsts = [of_key("A", "A0", num_prompt=100), of_key("B", "B0", num_prompt=50)]
    for request in [*firsts, of_key("A", "A1"), of_key("B", "B1")]:
        policy.push(request)
    for request in firsts:
        policy.start(request)
    policy.push(of_key("C", "C1"))
    assert counters(policy) == {"A": 100, "B": 50, "C": 50}
    assert served(policy) == ["B1", "C1", "A1"]


def test_a_key_that_comes_to_an_empty_queue_is_lifted_to_the_one_that_waited_last() -> None:
    policy = FairPolicy()
    a = of_key("A", "a", num_prompt=100)
    policy.push(a)
    policy.start(a)
    policy.end(a)
    policy.push(of_key("B", "b"))
    assert counters(policy) == {"A": 100, "B": 100}


def test_priority_comes_before_fairness_and_preempted_requests_before_new_ones() -> None:
    policy = FairPolicy()
    preempted = of_key("A", "preempted", num_prompt=100)
    policy.push(preempted)
    policy.start(preempted)
    policy.push(of_key("A", "urgent", priority=-1))
    policy.push(of_key("B", "b"))
    policy.push(of_key("A", "a"))
    preempted.num_preemptions = 1
    policy.requeue(preempted)
    assert [request.request_id for request in policy.lookahead(3)] == ["preempted", "urgent", "b"]
    assert served(policy) == ["urgent", "preempted", "b", "a"]
    assert len(policy) == 0 and policy.peek() is None


def test_of_two_keys_the_one_that_was_served_more_gives_way() -> None:
    policy = FairPolicy()
    requests = [of_key("A", "a0", num_prompt=9), of_key("A", "a1", num_prompt=9), of_key("B", "b", arrival=5.0)]
    for request in requests:
        policy.push(request)
        policy.start(request)
    assert [request.request_id for request in sorted(requests, key=policy.rank)] == ["a0", "a1", "b"]
    late = of_key("C", "c", num_prompt=1)
    policy.push(of_key("A", "a2"))
    policy.push(late)
    policy.start(late)
    assert policy.rank(late) > policy.rank(requests[1])


def test_keys_take_turns_in_the_lookahead() -> None:
    policy = FairPolicy()
    for index in range(9):
        policy.push(of_key("A", f"a{index}"))
    policy.push(of_key("B", "b"))
    assert [request.request_id for request in policy.lookahead(4)] == ["a0", "b", "a1", "a2"]


def test_idle_keys_are_forgotten_by_number_and_by_time() -> None:
    policy = FairPolicy(idle_limit_s=100.0, max_idle=3)
    for index in range(50):
        request = of_key(f"k{index}", f"r{index}", arrival=float(index))
        policy.push(request)
        policy.end(request)
    assert len(counters(policy)) <= 4
    waiting = of_key("waiting", "w", arrival=60.0)
    policy.push(waiting)
    policy.push(of_key("last", "l", arrival=500.0))
    assert set(counters(policy)) == {"waiting", "last"}


def test_a_new_client_has_nothing_ahead_and_a_flood_has_its_own_queue_by_the_number_of_keys() -> None:
    fair, fcfs = FairPolicy(), FCFSPolicy()
    for policy in (fair, fcfs):
        for index in range(10):
            policy.push(of_key("A", f"a{index}", num_prompt=10))
        policy.push(of_key("B", "b", num_prompt=30, priority=1))
    assert [fair.tokens_ahead(of_key(key, "new")) for key in ("A", "C")] == [100, 0]
    assert fair.tokens_ahead(of_key("A", "new", priority=1)) == 200
    assert [fcfs.tokens_ahead(of_key("C", "new", priority=priority)) for priority in (-1, 0, 1)] == [0, 100, 130]


@settings(deadline=None)
@given(st.data())
def test_any_history_keeps_the_queue_whole_and_serves_a_least_counter(data: st.DataObject) -> None:
    policy, waiting, running = FairPolicy(max_idle=2), {}, {}
    for step in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["push", "push", "start", "charge", "end", "requeue"])):
            case "push":
                request = of_key(data.draw(st.sampled_from("ABCD")), f"r{step}", num_prompt=data.draw(st.integers(1, 9)), arrival=step)
                policy.push(request)
                waiting[request.request_id] = request
            case "start" if waiting:
                head = policy.peek()
                assert head is not None
                served_so_far = counters(policy)
                if not head.num_preemptions:
                    least = min(served_so_far[each.origin.fairness_key] for each in waiting.values())
                    assert served_so_far[head.origin.fairness_key] == least
                policy.start(head)
                running[head.request_id] = waiting.pop(head.request_id)
            case "charge":
                policy.charge(running.values())
            case "end" if waiting or running:
                name = data.draw(st.sampled_from(sorted(waiting | running)))
                assert policy.end((waiting | running)[name]) is (name in waiting)
                waiting.pop(name, None), running.pop(name, None)
            case "requeue" if running:
                request = running.pop(data.draw(st.sampled_from(sorted(running))))
                request.num_preemptions += 1
                policy.requeue(request)
                waiting[request.request_id] = request
        assert {request.request_id for request in policy} == set(waiting)
        assert len(policy) == len(waiting)
