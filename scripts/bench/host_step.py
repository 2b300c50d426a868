"""What the host does in a step that decodes, in processor time of the engine's thread, without a device.

    PYTHONPATH=src python scripts/bench/host_step.py [--tokenizer FOLDER] [--parts]

Engine, scheduler, cache, inputs, sampling parameters and sinks are those of a CUDA backend with overlap. In place of its graphs, the next
tokens of a text are put where a choice would put them, so copies to a device and launches are not measured. The engine's clock advances by
--step-ms a step, since that decides how many tokens a delta has. Without a tokenizer's folder, ids are spelled out as bytes.
"""

import argparse
import gc
import time
from pathlib import Path

import torch
from engine_host import HostTimes
from host_rig import MAX_ROWS, VOCAB_SIZE, StepClock, create_engine
from torch import Tensor

from inference_server.core.request import RequestOrigin, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.tokenizer import ByteTokenizer, Tokenizer

PROMPT_TOKENS, WARM_STEPS, STEPS_A_SAMPLE = 128, 50, 64
TEXT = Path(__file__).parents[2] / "docs" / "architecture.md"


def words_of(tokenizer: TokenizerLike) -> Tensor:
    """The ids of a text, [ids of the text, rows]: each row reads it from another place on."""
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)
    if isinstance(tokenizer, ByteTokenizer):
        ids = torch.randint(VOCAB_SIZE, (len(ids),), generator=torch.Generator().manual_seed(0)).tolist()
    starts = torch.arange(MAX_ROWS) * 29
    return torch.tensor(ids)[(torch.arange(len(ids))[:, None] + starts) % len(ids)]


def requests_of(rows: int, max_tokens: int, temperature: float) -> list[ScheduledRequest]:
    ends = frozenset({VOCAB_SIZE, VOCAB_SIZE + 1})  # ids that are never drawn
    return [
        ScheduledRequest(
            f"gen-{rows}-{row}",
            [1000 * rows + row] * PROMPT_TOKENS,
            SamplingParams(temperature=temperature, seed=row, max_tokens=max_tokens, stop_token_ids=ends),
            1000.0,
            origin=RequestOrigin(fairness_key=f"client {row % 16}"),
        )
        for row in range(rows)
    ]


class Collections:
    """seconds: processor time that the garbage collector has taken since this was made."""

    def __init__(self) -> None:
        self.seconds = self._started = 0.0
        gc.callbacks.append(self)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._started = now
        else:
            self.seconds += now - self._started


def measure(engine: Engine, clock: StepClock, rows: int, args: argparse.Namespace) -> str:
    """A line with the microseconds a step: the mean, and the least of several samples, since neighbours on the machine only add time."""

    def steps(number: int) -> float:
        started = time.thread_time()
        for _ in range(number):
            clock.now += args.step_ms / 1000
            engine.step()
        return 1e6 * (time.thread_time() - started) / number

    for request in requests_of(rows, args.steps + 4 * WARM_STEPS + 2 * STEPS_A_SAMPLE, args.temperature):
        engine.add(request)
    while engine.snapshot.scheduler.num_running < rows:
        steps(1)
    steps(WARM_STEPS)
    collections = Collections()
    samples = [steps(STEPS_A_SAMPLE) for _ in range(args.steps // STEPS_A_SAMPLE)]
    gc.callbacks.remove(collections)
    mean, in_collections = sum(samples) / len(samples), 1e6 * collections.seconds / args.steps
    text = f"{rows:4d} rows: {min(samples):7.1f} µs a step, mean {mean:7.1f} of which garbage collections {in_collections:5.1f}"
    if args.parts:
        times = HostTimes(engine, time.thread_time)
        steps(STEPS_A_SAMPLE)
        times.remove()
        parts = sorted(times.seconds.items(), key=lambda item: -item[1])
        text += "".join(f"\n  {1e6 * seconds / STEPS_A_SAMPLE:8.1f} µs  {part}" for part, seconds in parts)
    for request in list(engine._open):
        engine.abort(request.request_id)
    while engine.has_work:
        steps(1)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-ms", type=float, default=4.6)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer.json")
    parser.add_argument("--parts", action="store_true", help="print the time by part of the step too; the timers cost some microseconds")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = ByteTokenizer(VOCAB_SIZE) if args.tokenizer is None else Tokenizer.from_folder(args.tokenizer)
    clock = StepClock()
    engine = create_engine(tokenizer, words_of(tokenizer), clock, PROMPT_TOKENS + args.steps + 1024)
    for rows in args.rows:
        print(measure(engine, clock, rows, args), flush=True)


if __name__ == "__main__":
    main()
