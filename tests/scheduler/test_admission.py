"""The gates: whole prompts, promises that are not kept yet, the watermark, active tokens, and the empty batch that admits anything."""

from itertools import count

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.scheduler.active_batch import ActiveBatch
from inference_server.scheduler.admission import AdmissionController, AdmissionPass, HoldReason
from inference_server.scheduler.policies import FCFSPolicy

NUMBERS = count()


def make_request(num_tokens: int, name: str = "") -> ScheduledRequest:
    return ScheduledRequest(name or f"r{next(NUMBERS)}", [1] * num_tokens, SamplingParams(), arrival_time=0.0)


def make_controller(num_blocks: int = 10, **options: float | None) -> AdmissionController:
    cache = CacheManager(BlockPool(KVLayout((LayerGroup((0,), 1, 1, 1),), block_size=4, num_slabs=num_blocks + 1)))
    return AdmissionController(cache, **options)  # type: ignore[arg-type]


def open_pass(controller: AdmissionController, *prefilling: ScheduledRequest) -> AdmissionPass:
    """Open a pass over a batch of the given rows, or of one row that needs nothing more."""
    policy = FCFSPolicy()
    batch = ActiveBatch(8, policy.rank)
    for request in prefilling or [make_request(0, "content")]:
        policy.push(request)
        batch.add(request)
    return controller.open(batch, chunk_tokens=4)


def test_the_whole_prompt_counts_not_its_first_chunk() -> None:
    controller = make_controller(watermark=0.0)
    assert open_pass(controller).admit(make_request(40)) is None
    assert open_pass(controller).admit(make_request(41)) is HoldReason.KV_BLOCKS


def test_what_was_promised_in_this_pass_and_before_counts() -> None:
    controller = make_controller(watermark=0.0)
    half_way = make_request(20, "half way")
    assert controller.cache.extend(half_way, 8)
    gate = open_pass(controller, half_way)
    assert gate.admit(make_request(12)) is None
    assert gate.admit(make_request(9)) is HoldReason.KV_BLOCKS
    assert gate.admit(make_request(8)) is None
    assert gate.admit(make_request(1)) is HoldReason.KV_BLOCKS


def test_the_watermark_stays_free() -> None:
    controller = make_controller(watermark=0.11)
    assert open_pass(controller).admit(make_request(33)) is HoldReason.KV_BLOCKS
    assert open_pass(controller).admit(make_request(32)) is None


def test_active_tokens_are_capped() -> None:
    controller = make_controller(max_active_tokens=10)
    gate = open_pass(controller)
    assert gate.admit(make_request(6)) is None
    assert gate.admit(make_request(5)) is HoldReason.ACTIVE_TOKENS
    assert gate.admit(make_request(4)) is None


def test_an_empty_batch_admits_one_whatever_the_gates_say() -> None:
    controller = make_controller(max_active_tokens=1, watermark=0.5)
    gate = controller.open(ActiveBatch(8, FCFSPolicy().rank), chunk_tokens=4)
    assert gate.admit(make_request(40)) is None
    assert gate.admit(make_request(1)) is HoldReason.ACTIVE_TOKENS


def test_nobody_joins_while_a_preempted_request_recomputes() -> None:
    controller = make_controller()
    preempted = make_request(4, "preempted")
    preempted.num_preemptions = 1
    gate = open_pass(controller)
    assert gate.admit(preempted) is None
    assert gate.admit(make_request(1)) is HoldReason.KV_BLOCKS
    assert open_pass(controller, preempted).admit(make_request(1)) is HoldReason.KV_BLOCKS
