"""The engine benchmark runs its workloads to their end on a tiny model on the CPU, and reports them in their units.

And all parts of the host's work that the benchmarks time by name exist.
"""

from argparse import Namespace
from pathlib import Path

import engine as bench
import pytest
from engine_host import parts_of
from engine_rig import WaitClock, create_engine, model_folder
from engine_workloads import Workload
from tiny_models import QWEN3

from inference_server.core.options import CacheOptions, ModelOptions, PrefillMode, SchedulerOptions
from inference_server.tokenization.tokenizer import ByteTokenizer


@pytest.mark.parametrize("mode", [PrefillMode.BATCHED, PrefillMode.MIXED])
def test_workloads_on_the_cpu(mode: PrefillMode) -> None:
    config = {"architectures": ["Qwen3ForCausalLM"], **{key: value for key, value in QWEN3.items() if value is not None}}
    model = ModelOptions("tiny", None, Path(), device="cpu", load_format="dummy", max_batch_size=4, max_batched_tokens=32)
    with model_folder(config) as folder:
        engine = create_engine(folder, model, SchedulerOptions(4, 32, mode, 32), CacheOptions(num_blocks=64))
    clock = WaitClock(engine.model.backend)
    alone = bench.measure(engine, Workload("b1", 1, (9, 9), (5, 5)), clock, rounds=2)
    assert (alone.steps, alone.workload.unit) == (5, "ms/step")
    assert alone.figure > alone.host_ms > 0
    mixed = bench.measure(engine, Workload("mixed", 7, (1, 40), (1, 9), "tok/s"), clock, rounds=1)
    assert mixed.figure > 0
    assert "ratio  2.00" in bench.row(alone, alone.figure / 2)


def test_every_part_of_the_hosts_work_is_found_and_runs() -> None:
    pytest.importorskip("triton")
    import host_step

    clock, tokenizer = host_step.StepClock(), ByteTokenizer(host_step.VOCAB_SIZE)
    engine = host_step.create_engine(tokenizer, host_step.words_of(tokenizer), clock, 2048)
    parts = [part for part, _, _ in parts_of(engine)]
    report = host_step.measure(engine, clock, 2, Namespace(steps=64, step_ms=5.0, temperature=0.5, parts=True))
    assert len(parts) == 15
    assert [part for part in parts if part not in report] == []
