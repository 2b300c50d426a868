"""The fake must be hard to fool: a wrong block, a lost window, a missed copy or a stale id each change the text."""

import subprocess
import sys
from dataclasses import replace

import pytest

from inference_server.backends.fake_backend import FULL_AND_WINDOW, PRINTABLE_ASCII, FakeBackend, expected_tokens
from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.plan import BlockCopy, StepPlan
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams

BLOCK = 4
WINDOW = 6
GROUPS = (LayerGroup((0,), 1, 1, 1), LayerGroup((1, 2), 1, 1, 1, window=WINDOW))
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def make_backend(**options: int) -> FakeBackend:
    backend = FakeBackend(GROUPS, alphabet=range(1000), **options)
    backend.load()
    backend.allocate(KVLayout(GROUPS, BLOCK, num_slabs=100))
    return backend


def make_request(prompt: list[int], *, first_block: int = 10, slot: int = 0) -> ScheduledRequest:
    """A request with blocks that are chosen by hand: a slab holds two blocks of group 0 or one of group 1, and the groups share none."""
    tables = [BlockTable(list(range(first_block, first_block + 8))), BlockTable(list(range(first_block + 10, first_block + 18)))]
    return ScheduledRequest("r", list(prompt), SamplingParams(max_tokens=99), arrival_time=0.0, slot=slot, block_tables=tables)


def launch(backend: FakeBackend, request: ScheduledRequest, count: int, copies: tuple[BlockCopy, ...] = ()) -> int:
    """Compute the next `count` tokens, and append the token that follows them, if there is one."""
    start = request.num_computed_tokens
    samples = start + count == request.num_tokens
    request.num_computed_tokens += count
    request.num_inflight_tokens += samples
    plan = StepPlan(1, block_copies=list(copies))
    plan.add(request, start, count, samples)
    step = backend.launch(plan)
    backend.sample(step)
    (token,) = backend.collect(step).token_ids
    if samples:
        request.token_ids.append(token)
        request.num_inflight_tokens -= 1
    return token


def generate(backend: FakeBackend, request: ScheduledRequest, count: int) -> list[int]:
    while request.num_output_tokens < count:
        launch(backend, request, request.num_tokens - request.num_computed_tokens)
    return request.output_token_ids


@pytest.mark.parametrize("chunk", range(1, len(PROMPT) + 1))
def test_chunks_do_not_change_the_text(chunk: int) -> None:
    backend, request = make_backend(), make_request(PROMPT)
    while request.num_computed_tokens + chunk < len(PROMPT):
        assert launch(backend, request, chunk) == -1
    assert generate(backend, request, 12) == backend.expected_tokens(PROMPT, 12)


def test_a_longer_straight_run_begins_like_a_shorter_one_and_depends_on_everything() -> None:
    windows = [group.window for group in GROUPS]
    tokens = expected_tokens(PROMPT, 12, windows, range(1000))
    assert expected_tokens(PROMPT, 5, windows, range(1000)) == tokens[:5]
    assert expected_tokens(PROMPT + tokens[:5], 7, windows, range(1000)) == tokens[5:]
    others = [expected_tokens([*PROMPT[:i], 99, *PROMPT[i + 1 :]], 12, windows, range(1000)) for i in range(len(PROMPT))]
    assert all(other != tokens for other in [*others, expected_tokens(PROMPT, 12, [None, WINDOW - 1], range(1000))])


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_wrong_block_is_a_wrong_token(group: int, index: int) -> None:
    backend, request = make_backend(), make_request(PROMPT)
    launch(backend, request, len(PROMPT))
    request.block_tables[group].block_ids[index] += 1
    assert generate(backend, request, 4) != backend.expected_tokens(PROMPT, 4) or (group, index) == (1, 0)


def test_the_window_group_reads_its_window_and_nothing_older() -> None:
    for null_block in (0, 1):
        backend, request = make_backend(), make_request(PROMPT)
        launch(backend, request, len(PROMPT))
        # The next token is at position 10 and reads from position 5 on, which is in block 1.
        request.block_tables[1].block_ids[null_block] = 0
        same = generate(backend, request, 3) == backend.expected_tokens(PROMPT, 3)
        assert same == (null_block == 0)


def test_a_window_of_one_reads_only_itself() -> None:
    groups = (GROUPS[0], replace(GROUPS[1], window=1))
    assert expected_tokens([1, 2], 3, [1]) == expected_tokens([9, 2], 3, [1])
    backend = FakeBackend(groups)
    backend.allocate(KVLayout(groups, BLOCK, num_slabs=100))
    assert generate(backend, make_request(PROMPT), 5) == backend.expected_tokens(PROMPT, 5)


def test_free_blocks_and_blocks_never_written_are_poison() -> None:
    backend, request = make_backend(), make_request(PROMPT)
    launch(backend, request, len(PROMPT))
    backend.poison(0, [request.block_tables[0].block_ids[1]])
    assert generate(backend, request, 4) != backend.expected_tokens(PROMPT, 4)


def test_a_slab_used_by_both_groups_loses_what_the_first_wrote() -> None:
    backend, request = make_backend(), make_request(PROMPT)
    launch(backend, request, len(PROMPT))
    intruder = make_request([1, 2, 3], first_block=60, slot=1)
    # Block 5 of group 1 lies in slab 5, on the bytes of blocks 10 and 11 of group 0.
    intruder.block_tables[1].block_ids[0] = 5
    launch(backend, intruder, 3)
    assert generate(backend, request, 4) != backend.expected_tokens(PROMPT, 4)


@pytest.mark.parametrize("copied_groups", [(0, 1), (0,), (1,), ()])
def test_a_fork_needs_the_copy_of_its_partial_block_in_every_group(copied_groups: tuple[int, ...]) -> None:
    backend, parent = make_backend(), make_request(PROMPT)
    generate(backend, parent, 1)
    child = make_request(PROMPT, first_block=60, slot=1)
    child.num_computed_tokens = 9
    copies = []
    for group in (0, 1):
        own, shared = child.block_tables[group].block_ids, parent.block_tables[group].block_ids
        own[:2] = shared[:2]
        if group in copied_groups:
            copies.append(BlockCopy(group, src=shared[2], dst=own[2]))
    launch(backend, child, 1, tuple(copies))
    right = generate(backend, child, 4) == backend.expected_tokens(PROMPT, 4)
    assert right == (copied_groups == (0, 1))


def test_the_token_in_flight_comes_from_the_device_by_slot() -> None:
    for slot in (3, 4):
        backend, request = make_backend(), make_request(PROMPT, slot=3)
        plans = [StepPlan(1), StepPlan(2)]
        request.num_inflight_tokens = 1
        plans[0].add(request, 0, len(PROMPT), True)
        step = backend.launch(plans[0])
        backend._token_by_slot[4] = 0
        backend.sample(step)
        request.slot = slot
        request.num_inflight_tokens = 2
        plans[1].add(request, len(PROMPT), 1, True)
        second = backend.launch(plans[1])
        backend.sample(second)
        tokens = [*backend.collect(step).token_ids, *backend.collect(second).token_ids]
        assert (tokens == backend.expected_tokens(PROMPT, 2)) == (slot == 3)


@pytest.mark.parametrize(
    ("start", "count", "samples"),
    [(0, 0, False), (0, len(PROMPT) + 1, True), (0, len(PROMPT) - 1, True), (0, len(PROMPT), False), (3, len(PROMPT), True)],
)
def test_a_plan_that_breaks_the_contract_is_refused(start: int, count: int, samples: bool) -> None:
    backend, request = make_backend(), make_request(PROMPT)
    request.num_inflight_tokens = int(samples or count == len(PROMPT))
    plan = StepPlan(1)
    plan.add(request, start, count, samples)
    with pytest.raises(ValueError, match="cannot compute"):
        backend.launch(plan)


@pytest.mark.parametrize("change", [{}, {"slot": 1}, {"request_id": "another"}, {"token_ids": [*PROMPT, 1, 2]}])
def test_a_row_that_decodes_goes_on_where_its_slot_has_sampled(change: dict[str, object]) -> None:
    backend, request = make_backend(), make_request(PROMPT)
    launch(backend, request, len(PROMPT))
    request = replace(request, **change)  # type: ignore[arg-type]
    request.num_inflight_tokens, start = 1, len(request.token_ids) - 1
    plan = StepPlan(2, [request], [start], [1], [True], num_decodes=1)
    if change:
        with pytest.raises(ValueError, match="does not go on"):
            backend.launch(plan)
    else:
        backend.launch(plan)


def test_rows_must_be_in_order_and_have_slots_of_their_own() -> None:
    backend = make_backend()
    long, short = make_request([1, 2], slot=0), make_request([1], first_block=60, slot=1)
    plan = StepPlan(1)
    for request in (long, short):
        request.num_inflight_tokens = 1
        plan.add(request, 0, len(request.token_ids), True)
    with pytest.raises(ValueError, match="single token"):
        backend.launch(plan)
    short.token_ids, short.slot, plan.num_new_tokens[1] = [1, 2], 0, 2
    with pytest.raises(ValueError, match="slots"):
        backend.launch(plan)


def test_text_is_printable_and_never_ends_unless_the_alphabet_has_an_end() -> None:
    tokens = expected_tokens([256, 72, 105], 400, [None, 32])
    assert set(tokens) <= set(PRINTABLE_ASCII) and len(set(tokens)) > 60
    assert 257 in expected_tokens([256, 72, 105], 400, [None, 32], [*PRINTABLE_ASCII, 257])


def test_collect_takes_the_time_it_is_told() -> None:
    slept: list[float] = []
    backend = FakeBackend(step_time_s=0.25, sleep=slept.append)
    spec = backend.load()
    assert spec.groups == FULL_AND_WINDOW and not spec.supports_overlap
    backend.allocate(KVLayout.from_bytes(spec.groups, 16, spec.free_bytes))
    generate(backend, make_request([1, 2, 3]), 2)
    assert slept == [0.25, 0.25]


def test_no_torch_is_loaded() -> None:
    program = (
        "import sys, inference_server.backends.fake_backend, inference_server.scheduler.continuous_batching; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout == "False\n"
