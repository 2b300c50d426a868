"""The turns of virtual users: the same for the same seed, in the proportions asked for, with shared documents."""

from collections import Counter
from itertools import islice

from inference_server.simulator.options import REALISTIC, Bucket, SimulationOptions
from inference_server.simulator.prompts import PromptStream, Turn

LONG_ONLY = {Bucket.LONG: 1.0}


def conversations(options: SimulationOptions, user: int, count: int) -> list[list[Turn]]:
    stream = PromptStream(options, user)
    return [stream.conversation() for _ in range(count)]


def test_a_user_says_the_same_for_the_same_seed_and_something_else_for_another() -> None:
    first = conversations(SimulationOptions(seed=7), 3, 20)
    assert first == conversations(SimulationOptions(seed=7), 3, 20)
    assert first != conversations(SimulationOptions(seed=8), 3, 20)
    assert first != conversations(SimulationOptions(seed=7), 4, 20)


def test_buckets_come_as_often_as_their_weights_say() -> None:
    openings = Counter(turns[0].bucket for turns in conversations(SimulationOptions(), 0, 4000))
    for bucket, weight in REALISTIC.items():
        assert abs(openings[bucket] / 4000 - weight) < 0.03


def test_lengths_of_the_buckets_do_not_overlap() -> None:
    lengths: dict[Bucket, list[int]] = {bucket: [] for bucket in Bucket}
    for turns in conversations(SimulationOptions(max_turns=1), 0, 500):
        lengths[turns[0].bucket].append(len(turns[0].text.split()))
    assert max(lengths[Bucket.SHORT]) < min(lengths[Bucket.MEDIUM])
    assert max(lengths[Bucket.MEDIUM]) < min(lengths[Bucket.LONG])


def test_users_ask_about_a_few_documents_that_they_share() -> None:
    options = SimulationOptions(weights=LONG_ONLY, max_turns=1)
    texts = [turns[0].text for user in range(4) for turns in conversations(options, user, 50)]
    assert len({text.rpartition("\n\n")[0] for text in texts}) == 6


def test_conversations_thoughts_and_answers_keep_their_limits() -> None:
    options = SimulationOptions(max_turns=4, max_tokens=40, think_time_s=2.0)
    talks = conversations(options, 0, 300)
    assert {len(turns) for turns in talks} == {1, 2, 3, 4}
    turns = [turn for talk in talks for turn in talk]
    assert {min(t.max_tokens for t in turns), max(t.max_tokens for t in turns)} == {10, 40}
    assert all(1.0 <= turn.think_s <= 3.0 for turn in turns)
    assert len({turn.think_s for turn in islice(turns, 100)}) == 100
