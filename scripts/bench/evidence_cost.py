"""What telemetry, timeline and spans together cost: throughput with all three beside that with none, on one model, in turns.

Runs the engine in this process, without HTTP, on the model that MODEL_NAME names (default: embedded). Two engines share the loaded
model and take turns, so a machine that is busy with other things slows both. The ratio is the median over pairs of rounds. It also prints
the share of the processor time that the writing threads take, which a busy machine disturbs far less; the engine's thread only appends to
queues. The spans go to a collector process. Short answers are the hard case: each request writes a row, a line and four spans at its end.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen

from inference_server.backends.profiler_ranges import ranges_on
from inference_server.config import Settings
from inference_server.core.options import EngineOptions, SinkOptions
from inference_server.core.request import RequestOrigin, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.engine.loaded_model import LoadedModel
from inference_server.observability.sinks import Sinks
from inference_server.server import load_model

NUM_PROMPT = 16
COLLECTOR = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args): ...
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def collector() -> Iterator[str]:
    """The address of a process that takes spans and throws them away."""
    with Popen([sys.executable, "-c", COLLECTOR], stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def run(engine: Engine, num_requests: int, max_tokens: int, name: str) -> tuple[float, float]:
    """Seconds a token, by the clock and of this process's processor time. Prompts share nothing with those of another `name`."""
    for index in range(num_requests):
        token_ids = [2] + [1000 + (hash((name, index)) + 31 * position) % 50_000 for position in range(NUM_PROMPT - 1)]
        sampling = SamplingParams(temperature=0.0, seed=index, max_tokens=max_tokens)
        engine.add(ScheduledRequest(f"{name}-{index}", token_ids, sampling, time.monotonic(), RequestOrigin(fairness_key=str(index % 8))))
    wall, processor = time.monotonic(), time.process_time()
    num_tokens = sum(len(delta.token_ids) for _ in iter(lambda: engine.has_work, False) for delta in engine.step().values())
    assert num_tokens == num_requests * max_tokens, f"{num_tokens} tokens"
    return (time.monotonic() - wall) / num_tokens, (time.process_time() - processor) / num_tokens


def engine_on(load: Callable[[], LoadedModel], sinks: Sinks) -> Engine:
    engine = Engine(load, EngineOptions(request_deadline_s=None, admission_deadline_s=None), list(sinks))
    engine.load()
    return engine


def writing_s(sinks: Sinks) -> float:
    """Processor seconds of the threads that write, which bear the names of their sinks."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name in sinks.writing and thread.ident is not None]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents)


def compare(model: LoadedModel, requests: int, tokens: int, rounds: int) -> tuple[list[Sequence[float]], float]:
    """For each pair of rounds the ratios (clock, processor) of all three over none; and the writing threads' share of processor time."""
    shares: list[Sequence[float]] = []
    processor_s = 0.0
    with tempfile.TemporaryDirectory() as folder, collector() as endpoint:
        options = SinkOptions(Path(folder) / "telemetry", Path(folder) / "timeline", endpoint)
        none, all_three = (Sinks.create("bench", each, time.monotonic) for each in (SinkOptions(), options))
        ranged = replace(model, ranges=ranges_on(model.spec.device))
        engines = [engine_on(lambda: model, none), engine_on(lambda: ranged, all_three)]
        for index in range(rounds + 1):
            order = (0, 1) if index % 2 else (1, 0)
            found = {kind: run(engines[kind], requests, tokens, f"{index}-{kind}") for kind in order}
            if index:  # the first warms up
                shares.append([on / off for on, off in zip(found[1], found[0], strict=True)])
            processor_s += found[1][1] * requests * tokens
        share = writing_s(all_three) / processor_s
        all_three.close()
        lost = {name: sink.dropped.total for name, sink in all_three.writing.items()}
        assert not any(lost.values()), lost
    return shares, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8, help="rows that decode together")
    parser.add_argument("--requests", type=int, default=48, help="requests of a round")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    model = load_model(Settings(enable_prefix_cache=False, max_batch_size=arguments.batch))
    shares, writing = compare(model, arguments.requests, arguments.tokens, arguments.rounds)
    for name, values in zip(("clock", "processor time"), zip(*shares, strict=True), strict=True):
        print(f"{name} a token with all three over none: {median(values):.4f} (from {min(values):.4f} to {max(values):.4f})")
    print(f"processor time of the threads that write: {writing:.2%} of the process's while all three are on")


if __name__ == "__main__":
    main()
