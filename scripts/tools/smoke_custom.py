"""Runs one prompt through the custom backend in this process, without a server: prints the tokens, and the time that they took.

    python scripts/tools/smoke_custom.py                                             # the embedded model
    PYTHONPATH=src python scripts/tools/smoke_custom.py --model FOLDER --load-format dummy --device cuda # a config.json is enough

Needs torch and the packages that read weights and tokenizers, no web framework. Tokens are chosen greedily. With random weights they
mean nothing, but every part of the engine has run.
"""

import argparse
import time
from pathlib import Path

from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.engine.model_loader import ModelLoader


def run(engine: Engine, prompt: list[int], max_tokens: int) -> tuple[list[int], list[float]]:
    """The ids that follow the prompt, and the seconds that each step took."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    request = ScheduledRequest("smoke", list(prompt), sampling, time.monotonic())
    engine.add(request)
    steps = []
    while engine.has_work:
        begin = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - begin)
    return list(request.token_ids[request.num_prompt_tokens :]), steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--model", default="embedded", help="embedded, a folder, a .gguf file or a Hugging Face id")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--load-format", default="auto", choices=["auto", "dummy"])
    parser.add_argument("--num-blocks", type=int, default=1024, help="blocks of the KV pool")
    parser.add_argument("--cache-dir", type=Path, default=Path("~/.cache/inference-server"), help="folder of converted weights")
    args = parser.parse_args()
    options = ModelOptions(
        args.model, None, args.cache_dir.expanduser(), backend="custom", device=args.device, load_format=args.load_format
    )
    loader = ModelLoader(options, CacheOptions(num_blocks=args.num_blocks), SchedulerOptions())
    engine = Engine(loader.load, EngineOptions())
    begin = time.perf_counter()
    model = engine.load()
    spec = model.spec
    loaded_s = time.perf_counter() - begin
    print(f"{spec.architecture}, {spec.num_parameters / 1e6:,.0f} M parameters, {spec.dtype} on {spec.device}, {loaded_s:.1f} s to load")
    prompt = model.tokenizer.encode(args.prompt)
    tokens, (first, *later) = run(engine, prompt, args.max_tokens)
    print(f"{len(prompt)} tokens in, the first step {1e3 * first:.1f} ms")
    print(f"{len(tokens)} tokens out: {tokens}")
    print(f"{args.prompt!r} + {model.tokenizer.decode(tokens)!r}")
    if later:
        print(f"{len(later)} more steps, {1e3 * sum(later) / len(later):.2f} ms each, {1e3 * min(later):.2f} at best")
    engine.stop()
    engine.step()


if __name__ == "__main__":
    main()
