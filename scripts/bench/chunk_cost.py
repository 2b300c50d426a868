"""What a step with a chunk of a prompt costs, by the size of the chunk and the tokens before it: least processor and wall time.

Runs the backend alone, on the model that MODEL_NAME names (default: embedded). The chunk is the step's only row and nothing is sampled
after it; with `--beside`, a short sequence decodes in the same step.
"""

import argparse
import time

from inference_server.backends.factory import create_backend
from inference_server.checkpoints.resolve import resolve_model
from inference_server.config import Settings
from inference_server.core.kv_layout import KVLayout
from inference_server.core.plan import StepPlan
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams

BLOCK_SIZE = 16


def request_of(name: str, slot: int, num_tokens: int, first_block: int, num_groups: int) -> ScheduledRequest:
    blocks = list(range(first_block, first_block - (-num_tokens // BLOCK_SIZE)))
    ids = [2] + [1000 + index % 5000 for index in range(num_tokens - 1)]
    tables = [BlockTable(blocks) for _ in range(num_groups)]
    return ScheduledRequest(name, ids, SamplingParams(temperature=0.0), 0.0, slot=slot, block_tables=tables)


def plan_of(chunk: int, context: int, beside: bool, layout: KVLayout) -> StepPlan:
    plan, num_groups = StepPlan(0), len(layout.groups)
    if beside:
        plan.add(request_of("stream", 1, 64, 1, num_groups), 63, 1, samples=True)
    plan.add(request_of("long", 0, context + chunk + 1, 8, num_groups), context, chunk, samples=False)
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[8, 16, 32, 64, 512])
    parser.add_argument("--contexts", type=int, nargs="+", default=[0, 2000, 4000, 8000])
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--steps", type=int, default=7)
    args = parser.parse_args()
    settings = Settings()
    folder = resolve_model(settings.model_name, settings.model_revision, settings.cache_dir)
    backend = create_backend(settings.model_options(), folder)
    spec = backend.load()
    num_blocks = (max(args.contexts) + max(args.chunks)) // BLOCK_SIZE + 16
    layout = KVLayout(spec.groups, BLOCK_SIZE, num_slabs=num_blocks)  # so that every layer group has `num_blocks`
    backend.allocate(layout)

    def best_ms(plan: StepPlan) -> tuple[float, float]:
        best = float("inf"), float("inf")
        for _ in range(args.steps):
            start = time.process_time(), time.perf_counter()
            step = backend.launch(plan)
            backend.sample(step)
            backend.collect(step)
            took = time.process_time() - start[0], time.perf_counter() - start[1]
            best = min(best[0], took[0]), min(best[1], took[1])
        return best[0] * 1e3, best[1] * 1e3

    for chunk in args.chunks:
        times = [best_ms(plan_of(chunk, context, args.beside, layout)) for context in args.contexts]
        figures = (f"{context}: {cpu:.1f} / {wall:.1f}" for context, (cpu, wall) in zip(args.contexts, times, strict=True))
        print(f"{chunk:>4} tokens, ms by context: {', '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
