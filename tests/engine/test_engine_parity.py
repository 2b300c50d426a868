"""The engine over the real scheduler and `FakeBackend`, whose tokens depend on every block that they are computed from."""

import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from engine_fakes import TOKENIZER, RecordList, VirtualClock, loaded, merged, run_dry

from inference_server.backends.fake_backend import FakeBackend, FakeStep
from inference_server.core.errors import StepFailedError
from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import CacheOptions, EngineOptions, PrefillMode, SchedulerOptions
from inference_server.core.plan import StepPlan, StepResult
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler


class FlakyBackend(FakeBackend):
    """Fails a share of its steps, at launch or when they are collected."""

    def __init__(self, random: Random, failure_rate: float, **options: bool) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._random = random
        self._failure_rate = failure_rate

    def launch(self, plan: StepPlan) -> FakeStep:
        self._maybe_fail()
        return super().launch(plan)

    def collect(self, step: FakeStep) -> StepResult:
        self._maybe_fail()
        return super().collect(step)

    def _maybe_fail(self) -> None:
        if self._random.random() < self._failure_rate:
            raise StepFailedError("lost")


def engine_on(backend: FakeBackend, mode: PrefillMode, num_blocks: int, sink: RecordList) -> tuple[Engine, ContinuousBatchScheduler]:
    spec = backend.load()
    layout = KVLayout.from_num_blocks(spec.groups, 16, num_blocks)
    backend.allocate(layout)
    options = SchedulerOptions(max_batch_size=6, max_batched_tokens=48, prefill_chunk_size=20, prefill_mode=mode)
    scheduler = ContinuousBatchScheduler(create_cache(layout, CacheOptions()), options, supports_mixed=spec.supports_mixed)
    model = replace(loaded(scheduler=scheduler), backend=backend, spec=spec)
    engine = Engine(lambda: model, EngineOptions(), [sink], VirtualClock())
    engine.load()
    return engine, scheduler


def requests_of(random: Random, number: int) -> list[ScheduledRequest]:
    beginning = [random.randrange(256) for _ in range(48)]
    return [
        ScheduledRequest(
            request_id=f"r{n}",
            token_ids=beginning[: random.choice([0, 48])] + [random.randrange(256) for _ in range(random.randrange(1, 60))],
            sampling=SamplingParams(max_tokens=random.randrange(1, 60), stop=("q~", "zz")),
            arrival_time=100.0 + n / 100,
        )
        for n in range(number)
    ]


def twins(request: ScheduledRequest, number: int) -> list[ScheduledRequest]:
    """Further requests with the same prompt."""
    tokens, sampling, arrival = request.token_ids, request.sampling, request.arrival_time
    return [ScheduledRequest(f"{request.request_id}.{n}", list(tokens), sampling, arrival) for n in range(number)]


def expected_text(backend: FakeBackend, prompt: list[int], max_tokens: int) -> tuple[str, FinishReason]:
    text = TOKENIZER.decode(backend.expected_tokens(prompt, max_tokens))
    cuts = [index for stop in ("q~", "zz") if (index := text.find(stop)) >= 0]
    return (text[: min(cuts)], FinishReason.STOP) if cuts else (text, FinishReason.LENGTH)


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
@pytest.mark.parametrize("mode", list(PrefillMode))
def test_text_equals_the_straight_run_under_preemption(mode: PrefillMode, overlap: bool) -> None:
    sink = RecordList()
    backend = FakeBackend(supports_overlap=overlap)
    engine, _ = engine_on(backend, mode, num_blocks=14, sink=sink)
    requests = requests_of(Random(7), 25)
    expected = {r.request_id: expected_text(backend, list(r.token_ids), r.sampling.max_tokens) for r in requests}
    for request in requests:
        engine.add(request)
    seen = {request_id: merged(deltas) for request_id, deltas in run_dry(engine).items()}
    assert {request_id: (whole.text, whole.finish_reason) for request_id, whole in seen.items()} == expected
    assert sum(r.num_preemptions for r in sink.requests) == engine.snapshot.scheduler.preemptions_total > 0
    assert sum(s.num_returned_tokens for s in sink.steps) == sum(r.output_tokens for r in sink.requests)
    assert engine.snapshot.cache.used_blocks == 0


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
@pytest.mark.parametrize("seed", range(8))
def test_aborts_and_lost_steps_never_touch_other_requests(seed: int, overlap: bool) -> None:
    random, sink = Random(seed), RecordList()
    backend = FlakyBackend(random, 0.02, supports_overlap=overlap)
    engine, scheduler = engine_on(backend, PrefillMode.MIXED, num_blocks=10, sink=sink)
    backlog = [[request, *twins(request, random.choice([0, 0, 2]))] for request in requests_of(random, 40)]
    requests = [request for group in backlog for request in group]
    prompts = {r.request_id: list(r.token_ids) for r in requests}
    seen = {r.request_id: [] for r in requests}
    known: list[ScheduledRequest] = []
    while backlog or engine.has_work:
        for _ in range(random.randrange(3)):
            if backlog:
                known += backlog[-1]
                engine.add(*backlog.pop())
        if random.random() < 0.05:
            engine.abort(random.choice(requests).request_id)
        for request_id, delta in engine.step().items():
            seen[request_id].append(delta)
        scheduler.check_integrity([r for r in known if not r.finished])
    for request in requests:
        deltas = seen[request.request_id]
        if deltas:
            assert [d.terminal for d in deltas] == [False] * (len(deltas) - 1) + [True]
        text, reason = expected_text(backend, prompts[request.request_id], request.sampling.max_tokens)
        whole = merged(deltas)
        assert text.startswith(whole.text)
        if whole.error is None and deltas:
            assert (whole.text, whole.finish_reason) == (text, reason)
    assert {r.error_code for r in sink.requests} == {None, "aborted", "step_failed"}
    assert engine.snapshot.scheduler.preemptions_total >= 3
    assert engine.snapshot.cache.used_blocks == 0


def test_the_engine_loads_no_torch_and_no_web_framework() -> None:
    code = (
        "import sys, inference_server.engine.engine\n"
        "assert 'llguidance' not in sys.modules, 'the tests of a bare GPU machine run this thread'\n"
        "import inference_server.engine.async_engine, inference_server.backends.fake_backend\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'fastapi', 'starlette', 'uvicorn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=60)
