"""What quantisation costs in quality: perplexity of a text, and how often the most likely next token is that of the first setting.

    python scripts/bench/quality.py --quantization none int8

Decodes the text through the scheduler and the backend as if each of its tokens had been sampled, several passages at a time.
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from inference_server.backends.paged_backend import PagedBackend
from inference_server.checkpoints.resolve import resolve_model
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.config import Settings
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.model_loader import kv_layout
from inference_server.kv_cache.factory import create_cache
from inference_server.sampling.token_rows import Sampled, SamplingRows
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.tokenizer import Tokenizer

TEXT = Path(__file__).parents[2] / "docs" / "architecture.md"


@dataclass(slots=True)
class Recital:
    """A sampler that "samples" the tokens of the passages. A request's seed is the number of its passage."""

    passages: Sequence[Sequence[int]]
    losses: list[float] = field(default_factory=list)
    best: dict[tuple[int, int], int] = field(default_factory=dict)  # the most likely token by (passage, position)
    capturable: None = None

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        places = [(request.sampling.seed, position) for request, position in zip(rows.requests, rows.positions, strict=True)]
        said = torch.tensor([self.passages[passage][position] for passage, position in places])
        self.losses += torch.nn.functional.cross_entropy(logits, said, reduction="none").tolist()
        self.best.update(zip(places, logits.argmax(-1).tolist(), strict=True))
        return Sampled(said)

    @property
    def perplexity(self) -> float:
        return math.exp(sum(self.losses) / len(self.losses))

    def agreement(self, other: "Recital") -> float:
        """Share of the places in which both would have chosen the same token."""
        return sum(other.best[place] == token for place, token in self.best.items()) / len(self.best)


def passages(num_tokens: int, rows: int, model_name: str = Settings.model_fields["model_name"].default) -> list[list[int]]:
    """The first `num_tokens` of the project's own text, cut into `rows` passages of equal length, each after a BOS token."""
    settings = Settings(model_name=model_name)
    ids = Tokenizer.from_folder(resolve_model(model_name, None, settings.cache_dir)).encode(TEXT.read_text())
    length = min(num_tokens, len(ids)) // rows
    return [ids[:1] + ids[row * length + 1 : (row + 1) * length] for row in range(rows)]


def recite(settings: Settings, texts: Sequence[Sequence[int]]) -> Recital:
    """Predict every token of every passage but the first one, each from those before it."""
    recital = Recital(texts)
    folder = resolve_model(settings.model_name, settings.model_revision, settings.cache_dir)
    backend = PagedBackend(settings.model_options(), folder, open_checkpoint, recital)
    spec = backend.load()
    layout = kv_layout(settings.cache_options(), spec)
    backend.allocate(layout)
    recital.losses.clear()
    recital.best.clear()
    scheduler = ContinuousBatchScheduler(create_cache(layout, settings.cache_options()), settings.scheduler_options())
    for number, text in enumerate(texts):
        sampling = SamplingParams(seed=number, max_tokens=len(text) - 1)
        scheduler.add(ScheduledRequest(str(number), [text[0]], sampling, time.monotonic()))
    while plan := scheduler.schedule(time.monotonic()):
        step = backend.launch(plan)
        backend.sample(step)
        said = {request.request_id for request in plan.requests if request.num_tokens == len(texts[0]) - 1}
        scheduler.update(plan, backend.collect(step), dict.fromkeys(said, FinishReason.LENGTH))
    backend.close()
    return recital


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantization", nargs="+", default=["none", "int8"])
    parser.add_argument("--tokens", type=int, default=2600)
    parser.add_argument("--rows", type=int, default=8)
    args = parser.parse_args()
    texts = passages(args.tokens, args.rows)
    first = None
    for quantization in args.quantization:
        recital = recite(Settings(quantization=quantization, kv_cache_num_blocks=args.tokens // 4), texts)
        first = first or recital
        change = recital.perplexity / first.perplexity - 1
        agreement = recital.agreement(first)
        print(f"{quantization:>5}: perplexity {recital.perplexity:.3f} ({change:+.2%}), same greedy token {agreement:.1%}", flush=True)


if __name__ == "__main__":
    main()
