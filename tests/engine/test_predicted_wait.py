"""A request that would have to wait past its admission deadline is refused at once."""

from engine_fakes import EchoBackend, RecordList, VirtualClock, loaded, scheduled, scheduler_of

from inference_server.core.errors import OverloadedError
from inference_server.core.options import EngineOptions
from inference_server.core.request import RequestOrigin
from inference_server.engine.engine import Engine


def test_a_wait_predicted_beyond_the_deadline_is_refused_with_the_estimate() -> None:
    clock, sink = VirtualClock(), RecordList()

    def second_passes(plan: object) -> None:
        clock.now += 1.0

    model = loaded(EchoBackend(before_collect=second_passes), scheduler_of(1))
    engine = Engine(lambda: model, EngineOptions(admission_deadline_s=30.0), [sink], clock)
    engine.load()
    for index in range(40):
        # 3 prompt tokens in 3 steps: one prompt token a second.
        engine.add(scheduled("ab", f"r{index}", arrival_time=clock.now + index * 1e-6))
    while len(sink.requests) < 10:
        engine.step()
    for index, age in ((0, 0.0), (1, 25.0)):
        engine.add(scheduled("ab", f"late{index}", arrival_time=clock.now - age))
        deltas = engine.step()
        error = deltas[f"late{index}"].error
        assert isinstance(error, OverloadedError)
        assert 80 < error.retry_after_s < 100
    other = scheduled("ab", "other", arrival_time=clock.now)
    other.origin = RequestOrigin(fairness_key="another client")
    engine.add(other)
    assert "other" not in engine.step()
    while other.admitted_time is None:
        engine.step()
    assert other.admitted_time - other.arrival_time < 5
