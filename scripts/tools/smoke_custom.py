"""One prompt through the custom backend in this process, without a server: its tokens, and what they took.

    python scripts/tools/smoke_custom.py                                             # the embedded model
    python scripts/tools/smoke_custom.py --prompt "2 + 2 =" --max-tokens 8 -- --model-name /models/e2b --load-format dummy --device cuda

What follows `--` are flags of the server. Greedy; with random weights the tokens mean nothing, but every part of the engine has run.
"""

import argparse
import time

from inference_server.config import Settings
from inference_server.core.options import EngineOptions
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.server import load_model


def run(engine: Engine, prompt: list[int], max_tokens: int) -> tuple[list[int], list[float]]:
    """The ids that follow the prompt, and the seconds of each step."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    request = ScheduledRequest("smoke", prompt, sampling, time.monotonic())
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
    parser.add_argument("flags", nargs="*", help="of the server, after --")
    args = parser.parse_args()
    settings = Settings.from_cli(["--backend", "custom", *args.flags])
    engine = Engine(lambda: load_model(settings), EngineOptions())
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
