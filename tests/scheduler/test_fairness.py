"""Two clients on one server, on a virtual clock: what a flood costs its neighbour, and what fairness costs the server."""

from dataclasses import dataclass

import pytest
from virtual_server import INPUT_WEIGHT, OUTPUT_WEIGHT, VirtualServer, make_request

from inference_server.core.options import PolicyName, SchedulerOptions

SLOTS, PROMPT, OUTPUT = 8, 32, 48


def server(policy: PolicyName, *, overlap: bool = False) -> VirtualServer:
    options = SchedulerOptions(max_batch_size=SLOTS, max_batched_tokens=256, prefill_chunk_size=64, scheduling_policy=policy)
    return VirtualServer(options, overlap=overlap)


@dataclass(frozen=True)
class Outcome:
    worst_ttft_of_b: float
    seconds_between_releases: float
    tokens_per_s: float


def flood(policy: PolicyName, *, num_a: int = 100, overlap: bool = False) -> Outcome:
    """Let A send `num_a` requests at once, and B 5 requests now and then. Slots are released one after the other, as in steady state."""
    virtual = server(policy, overlap=overlap)
    for index in range(num_a):
        output = OUTPUT * (index + 1) // SLOTS if index < SLOTS else OUTPUT
        virtual.add(make_request(f"a{index}", PROMPT, output, key="A"))
    full_until = 0.0
    for index in range(5):
        due = 0.8 + 0.77 * index
        virtual.run(until=lambda due=due: virtual.now >= due)  # type: ignore[misc]
        virtual.now = max(virtual.now, due)
        full_until = virtual.now
        virtual.add(make_request(f"b{index}", PROMPT, OUTPUT, key="B", arrival=virtual.now))
    virtual.run()
    ends = [end for end in virtual.ends if end <= full_until]
    tokens = sum(len(life.token_times) for life in virtual.lives.values())
    return Outcome(
        worst_ttft_of_b=max(life.ttft for name, life in virtual.lives.items() if name.startswith("b")),
        seconds_between_releases=(ends[-1] - ends[0]) / (len(ends) - 1),
        tokens_per_s=tokens / virtual.now,
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_a_flood_of_one_client_does_not_make_another_wait(overlap: bool) -> None:
    alone = flood(PolicyName.FAIR, num_a=0, overlap=overlap)
    fair, fcfs = (flood(policy, overlap=overlap) for policy in (PolicyName.FAIR, PolicyName.FCFS))
    bound = 1.5 * (alone.worst_ttft_of_b + fair.seconds_between_releases)
    assert fair.worst_ttft_of_b <= bound
    assert fcfs.worst_ttft_of_b >= 5 * bound
    assert abs(fair.tokens_per_s / fcfs.tokens_per_s - 1) <= 0.03


def widest_difference(policy: PolicyName) -> int:
    """The most by which the service of two clients differs over any stretch of time in which both have requests waiting."""
    virtual = server(policy)
    for index in range(150):
        virtual.add(make_request(f"a{index}", 2 * PROMPT, OUTPUT // 4, key="A"))
    virtual.run(until=lambda: virtual.now > 0.5)
    for index in range(150):
        virtual.add(make_request(f"b{index}", PROMPT // 4, OUTPUT, key="B", arrival=virtual.now))
    differences = []
    while {request.origin.fairness_key for request in virtual.scheduler.waiting()} == {"A", "B"}:
        virtual.step()
        differences.append(virtual.served["A"] - virtual.served.get("B", 0))
    assert len(differences) > 50
    return max(differences) - min(differences)


def test_the_service_of_two_backlogged_clients_differs_by_at_most_the_papers_bound() -> None:
    most_in_batch = SLOTS * (PROMPT // 4 + OUTPUT)
    bound = 2 * max(INPUT_WEIGHT * 2 * PROMPT, OUTPUT_WEIGHT * most_in_batch)
    assert widest_difference(PolicyName.FAIR) <= bound
    assert widest_difference(PolicyName.FCFS) > bound


def test_a_client_that_was_away_does_not_catch_up_on_what_it_missed() -> None:
    virtual = server(PolicyName.FAIR)
    virtual.add(make_request("b", PROMPT, 1, key="B"))
    virtual.run()
    for index in range(60):
        virtual.add(make_request(f"a{index}", PROMPT, OUTPUT, key="A", arrival=virtual.now))
    virtual.run(until=lambda: virtual.now > 2)
    for index in range(60):
        virtual.add(make_request(f"b{index}", PROMPT, OUTPUT, key="B", arrival=virtual.now))
    before = dict(virtual.served)
    virtual.run(until=lambda: virtual.now > 4)
    gained = {key: virtual.served[key] - before[key] for key in ("A", "B")}
    assert before["A"] > 10 * before["B"]
    assert 0.6 < gained["A"] / gained["B"] < 1.2


def test_a_new_key_for_every_request_still_lets_the_others_have_their_turn() -> None:
    virtual = server(PolicyName.FAIR)
    for index in range(40):
        virtual.add(make_request(f"a{index}", PROMPT, OUTPUT, key=f"A{index}"))
    b = virtual.add(make_request("b", PROMPT, OUTPUT, key="B"))
    later = [virtual.add(make_request(f"c{index}", PROMPT, OUTPUT, key=f"C{index}")) for index in range(20)]
    virtual.run()
    assert all(b.token_times[0] <= life.token_times[0] for life in later)
