"""Whether a prompt with a seed gets the same tokens alone and among busy neighbours, and from which token on they differ.

Runs the engine in this process, without HTTP, on the model that MODEL_NAME names (default: embedded), in DTYPE. Each of the probes is
sampled at temperature 1, first alone, then together with the others and further neighbours, whose prompts have other lengths.
"""

import argparse
import time
from random import Random

from inference_server.config import Settings
from inference_server.core.options import EngineOptions
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.server import load_model


def request(name: str, index: int, max_tokens: int, vocab_size: int) -> ScheduledRequest:
    random = Random(index)
    token_ids = [2] + [random.randrange(3, min(vocab_size, 20_000)) for _ in range(random.randint(8, 60))]
    return ScheduledRequest(f"{name}{index}", token_ids, SamplingParams(seed=index, max_tokens=max_tokens), time.monotonic())


def tokens_of(engine: Engine, *requests: ScheduledRequest) -> list[list[int]]:
    for each in requests:
        engine.add(each)
    while engine.has_work:
        assert not any(delta.error for delta in engine.step().values())
    return [each.output_token_ids for each in requests]


def first_difference(alone: list[int], beside: list[int]) -> int | None:
    return next((at for at, (one, other) in enumerate(zip(alone, beside, strict=True)) if one != other), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probes", type=int, default=16)
    parser.add_argument("--rows", type=int, default=32, help="probes and neighbours together")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    engine = Engine(lambda: load_model(Settings(enable_prefix_cache=False)), EngineOptions(request_deadline_s=None))
    model = engine.load()
    size = model.spec.vocab_size
    alone = [tokens_of(engine, request("alone", index, arguments.tokens, size))[0] for index in range(arguments.probes)]
    together = tokens_of(engine, *[request("beside", index, arguments.tokens, size) for index in range(arguments.rows)])
    differences = [first_difference(*pair) for pair in zip(alone, together[: arguments.probes], strict=True)]
    changed = sorted(at for at in differences if at is not None)
    print(f"{model.spec.dtype} on {model.spec.device}: {len(changed)} of {arguments.probes} differ, first at tokens {changed}")


if __name__ == "__main__":
    main()
