"""What the host does for the prompts of an idle engine, in processor time of the engine's thread, without a device.

    PYTHONPATH=src python scripts/bench/host_prompt.py [--rows 1 32] [--tokens 8192 128] [--profile]

The engine is that of `host_step.py`. What the host does before the forward is launched and after its tokens have come adds to the time to
the first token. What it does between the two is hidden behind the device. The least of several rounds counts, each with new prompts.
"""

import argparse
import cProfile
import gc
import pstats
import time
from typing import Any

import torch
from host_rig import GROUPS, MAX_ROWS, MAX_TOKENS, VOCAB_SIZE, StepClock, create_engine

from inference_server.core.options import PrefillMode, SchedulerOptions
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.tokenization.tokenizer import ByteTokenizer

WHOLE = SchedulerOptions(MAX_ROWS, MAX_TOKENS, PrefillMode.BATCHED)


class Marks:
    """The thread's processor time in seconds. launched: when the forward was replayed. waiting, waited: when the wait for its tokens began
    and ended.
    """

    def __init__(self, engine: Engine) -> None:
        self.launched = self.waiting = self.waited = 0.0
        backend: Any = engine.model.backend if engine.model else None
        graphs, returns = backend._runner._graphs, backend._returns
        replay, wait = graphs.replay, returns.wait

        def marked_replay(key: Any) -> None:
            if not isinstance(key, tuple):
                self.launched = time.thread_time()
            replay(key)

        def marked_wait(returned: Any) -> list[int]:
            self.waiting = time.thread_time()
            ids: list[int] = wait(returned)
            self.waited = time.thread_time()
            return ids

        graphs.replay, returns.wait = marked_replay, marked_wait


def requests_of(rows: int, tokens: int, round_: int) -> list[ScheduledRequest]:
    ids = torch.randint(VOCAB_SIZE, (rows, tokens), generator=torch.Generator().manual_seed(round_)).tolist()
    return [
        ScheduledRequest(f"{rows}-{round_}-{row}", ids[row], SamplingParams(temperature=0.0, seed=row, max_tokens=1), 1000.0)
        for row in range(rows)
    ]


def run(engine: Engine, marks: Marks, rows: int, tokens: int, round_: int) -> tuple[float, float, float]:
    """The host's microseconds before the launch, while the device would work, and after it."""
    requests = requests_of(rows, tokens, round_)
    gc.collect()
    started = time.thread_time()
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    ended = time.thread_time()
    parts = marks.launched - started, marks.waiting - marks.launched, ended - marks.waited
    return parts[0] * 1e6, parts[1] * 1e6, parts[2] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 128], help="tokens of each row's prompt, for each of --rows")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--profile", action="store_true", help="print the time by function too, under a profiler that slows all down")
    args = parser.parse_args()
    torch.set_num_threads(1)
    words = torch.zeros(1, MAX_ROWS, dtype=torch.int64)
    for name, groups in (("full and window layers", GROUPS), ("full layers alone", GROUPS[:1])):
        engine = create_engine(ByteTokenizer(VOCAB_SIZE), words, StepClock(), MAX_TOKENS + 64, groups, WHOLE)
        marks = Marks(engine)
        for rows, tokens in zip(args.rows, args.tokens, strict=True):
            rounds = [run(engine, marks, rows, tokens, round_) for round_ in range(args.rounds)]
            before, meanwhile, after = (min(part) for part in zip(*rounds, strict=True))
            print(f"{name}, {rows} x {tokens}: {before:7.0f} µs before, {meanwhile:7.0f} meanwhile, {after:7.0f} after", flush=True)
            if args.profile:
                profiler = cProfile.Profile()
                profiler.enable()
                for round_ in range(args.rounds, args.rounds + 5):
                    run(engine, marks, rows, tokens, round_)
                profiler.disable()
                pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
