"""One prompt that does not fit: which requests pass it, for how long, and what the statistics say. Preemption without thrashing."""

from random import Random

import pytest
from virtual_server import VirtualServer, make_request

from inference_server.core.options import PolicyName, SchedulerOptions
from inference_server.core.request import RequestStatus, ScheduledRequest
from inference_server.scheduler.admission import AdmissionController

POLICIES = list(PolicyName)


def server(policy: PolicyName, *, num_blocks: int, batch: int = 8, ageing_s: float = 5.0) -> VirtualServer:
    options = SchedulerOptions(max_batch_size=batch, max_batched_tokens=512, scheduling_policy=policy)
    return VirtualServer(options, num_blocks=num_blocks, ageing_s=ageing_s)


def full_house(policy: PolicyName, ageing_s: float) -> tuple[VirtualServer, ScheduledRequest]:
    """A server with a giant of 40 blocks at the head of the queue, and rows that hold 30 of the 64 blocks. Returns it and the giant."""
    virtual = server(policy, num_blocks=64, ageing_s=ageing_s)
    for index in range(3):
        virtual.add(make_request(f"first{index}", 150, 300, key="a"))
    virtual.step()
    giant = make_request("giant", 640, 4, key="a", arrival=0.1)
    virtual.add(giant)
    return virtual, giant


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("key", ["a", "b"])
def test_small_prompts_pass_a_giant_that_does_not_fit(policy: PolicyName, key: str) -> None:
    virtual, giant = full_house(policy, ageing_s=1e9)
    smalls = [virtual.add(make_request(f"small{index}", 20, 3, key=key, arrival=0.2)) for index in range(10)]
    virtual.run(until=lambda: all(life.request.finished for life in smalls))
    assert giant.status is RequestStatus.WAITING
    virtual.run()
    assert giant.finished


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stream_of_small_prompts_starves_no_giant(policy: PolicyName) -> None:
    ages = []
    for ageing_s in (1.0, 1e9):
        virtual, giant = full_house(policy, ageing_s)
        count = 0
        while giant.status is RequestStatus.WAITING and virtual.now < 30:
            while len(virtual.scheduler.waiting()) < 4:
                count += 1
                virtual.add(make_request(f"small{count}", 100, 150, key=f"k{count}", arrival=virtual.now))
            virtual.step()
        ages.append(virtual.now)
    drained_after_s = 150 * 0.015 + 300 * 0.015
    assert ages[0] <= 1.0 + drained_after_s
    assert ages[1] > 30


@pytest.mark.parametrize("policy", POLICIES)
def test_every_waiting_request_is_counted_by_what_holds_it(policy: PolicyName) -> None:
    virtual, _ = full_house(policy, ageing_s=5.0)
    for index in range(40):
        virtual.add(make_request(f"small{index}", 20, 30, key="b", arrival=0.2))
    virtual.step()
    stats = virtual.scheduler.scheduler_stats()
    assert stats.num_waiting == 36
    assert stats.waiting_by_reason == {"slots": 35, "kv_blocks": 1}
    virtual.run(until=lambda: not virtual.scheduler.waiting())
    assert virtual.scheduler.scheduler_stats().waiting_by_reason == {}


class NoHysteresis(AdmissionController):
    """An admission that learns nothing from preemptions."""

    def preempted(self, num_active: int) -> None: ...


def under_pressure(controller: type[AdmissionController]) -> tuple[list[int], float]:
    """Run 60 requests that grow to several times the pool. Returns the preemptions of each, and the seconds that all took."""
    virtual = server(PolicyName.FCFS, num_blocks=60, batch=16)
    virtual.scheduler._intake._admission = controller(virtual.scheduler._cache)
    random = Random(1)
    sizes = [(random.randrange(10, 120), random.randrange(50, 500)) for _ in range(60)]
    lives = [virtual.add(make_request(f"r{index}", *size, arrival=index / 1000)) for index, size in enumerate(sizes)]
    virtual.run()
    return [life.request.num_preemptions for life in lives], virtual.now


def test_who_is_admitted_after_a_preemption_has_room_to_grow() -> None:
    counts, seconds = under_pressure(AdmissionController)
    thrash_counts, thrash_seconds = under_pressure(NoHysteresis)
    assert sum(counts) <= 0.75 * sum(thrash_counts)
    assert max(counts) < max(thrash_counts)
    assert seconds <= 1.08 * thrash_seconds
