"""Runs batches through an engine's own interface, without HTTP, in a Python that has that engine: this project's, or vLLM's.

    python scripts/bench/offline_batch.py vllm < job.json

`vllm_head_to_head.py` writes the job: the model folder, and batches as (rows, tokens in, tokens out of each row). The output is a JSON list
with the output tokens a second of each batch: those of the best round, prefill included, after a round that warms up. All else that an
engine prints goes to the error stream. Prompts are random ids, the same for both, and no prefix is cached. Here vLLM makes no text, while
this engine does, for each token.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

Generate = Callable[[list[list[int]], int], int]  # from prompts and the tokens out of each to the number of tokens generated


def open_vllm(job: dict[str, Any]) -> Generate:
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(
        model=job["folder"],
        load_format=job["load_format"],
        max_model_len=job["max_model_len"],
        max_num_seqs=job["max_batch_size"],
        max_num_batched_tokens=job["max_batched_tokens"],
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )

    def generate(prompts: list[list[int]], max_tokens: int) -> int:
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in prompts], sampling_params=sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate


def open_ours(job: dict[str, Any]) -> Generate:
    from engine import drain
    from engine_rig import create_engine

    from inference_server.core.options import CacheOptions, ModelOptions, PrefillMode, SchedulerOptions
    from inference_server.core.request import ScheduledRequest
    from inference_server.core.sampling_params import SamplingParams

    folder, rows, tokens = Path(job["folder"]), job["max_batch_size"], job["max_batched_tokens"]
    lengths = {"max_batch_size": rows, "max_batched_tokens": tokens, "max_model_len": job["max_model_len"]}
    model = ModelOptions(folder.name, None, folder, load_format=job["load_format"], **lengths)
    scheduler = SchedulerOptions(rows, tokens, PrefillMode.BATCHED, tokens)
    engine = create_engine(folder, model, scheduler, CacheOptions(enable_prefix_cache=False))

    def generate(prompts: list[list[int]], max_tokens: int) -> int:
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        requests = [ScheduledRequest(str(i), ids, sampling, time.monotonic()) for i, ids in enumerate(prompts)]
        for request in requests:
            engine.add(request)
        drain(engine)
        return sum(request.num_output_tokens for request in requests)

    return generate


def measure(job: dict[str, Any], generate: Generate) -> list[float]:
    """Tokens a second of each batch. Raises RuntimeError if an engine does not generate as many tokens as it was asked for."""
    rates = []
    for rows, num_in, num_out in job["batches"]:
        random, best = Random(f"{rows} {num_in}"), 0.0
        for round_ in range(job["rounds"] + 1):
            prompts = [[random.randrange(job["vocab_size"]) for _ in range(num_in)] for _ in range(rows)]
            begin = time.perf_counter()
            tokens = generate(prompts, num_out)
            if tokens != rows * num_out:
                raise RuntimeError(f"{tokens} tokens instead of {rows} x {num_out}")
            if round_:
                best = max(best, tokens / (time.perf_counter() - begin))
        print(f"{rows} rows, {num_in} in, {num_out} out: {best:,.1f} tokens a second", file=sys.stderr, flush=True)
        rates.append(best)
    return rates


if __name__ == "__main__":
    given = json.load(sys.stdin)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        json.dump(measure(given, {"vllm": open_vllm, "ours": open_ours}[sys.argv[1]](given)), answer)
