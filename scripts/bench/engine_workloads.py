"""The workloads of the engine benchmark, and what vLLM 0.26 takes for them on an H200."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Workload:
    """`rows` requests together. prompt, output: range of the tokens in and out of a request, which a fixed seed draws."""

    name: str
    rows: int
    prompt: tuple[int, int] = (128, 128)
    output: tuple[int, int] = (257, 257)
    unit: str = "ms/step"

    def requests(self, round_: int, vocab_size: int, temperature: float = 0.0) -> list[ScheduledRequest]:
        """The requests of a round. No two prompts share a prefix, not even in different rounds."""
        random = Random(f"{self.name} {round_}")
        requests = []
        for i in range(self.rows):
            prompt = [random.randrange(vocab_size) for _ in range(random.randint(*self.prompt))]
            sampling = SamplingParams(temperature=temperature, seed=i, max_tokens=random.randint(*self.output))
            requests.append(ScheduledRequest(f"{self.name}-{round_}-{i}", prompt, sampling, time.monotonic()))
        return requests


WORKLOADS = [
    *(Workload(f"b{rows}", rows) for rows in (1, 8, 32, 64, 128, 256)),
    Workload("prefill 1,024", 1, (1024, 1024), (1, 1), "ms"),
    Workload("prefill 8,192", 1, (8192, 8192), (1, 1), "ms"),
    Workload("b1 at 8k", 1, (8000, 8000)),
    Workload("b32 at 8k", 32, (8000, 8000), unit="s"),
    Workload("mixed 512", 512, (64, 1024), (32, 512), "tok/s"),
]
VLLM: Mapping[str, list[float]] = {  # in the order of WORKLOADS
    "gemma4-e2b": [3.32, 3.42, 3.62, 4.59, 6.12, 8.45, 24, 67, 3.61, 3.17, 12857],
    "gemma4-e4b": [4.81, 5.05, 5.45, 5.84, 8.09, 14.1, 31, 117, 5.28, 5.51, 9085],
    "qwen3-30b-a3b": [4.17, 9.37, 15.8, 18.1, 19.6, 23.4, 53, 154, 4.94, 10.1, 4794],
}
