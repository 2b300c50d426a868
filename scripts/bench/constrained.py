"""Compare the throughput of answers that follow a JSON schema with that of free ones: the same number of clients, tokens and prompts.

Runs the engine in this process, without HTTP, on the model that MODEL_NAME names (default: embedded). Rounds of both kinds take
turns, so a machine that is busy with other things slows both. The ratio is that of their medians.
"""

import argparse
import json
import time
from statistics import median

from inference_server.config import Settings
from inference_server.core.grammar import CompiledGrammar, GrammarKind, GrammarSpec
from inference_server.core.options import EngineOptions
from inference_server.core.request import RequestOrigin, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.server import load_model

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["person", "company", "other"]},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "age", "kind", "notes"],
        "additionalProperties": False,
    },
}
NUM_PROMPT = 32


def run(
    engine: Engine, name: str, num_clients: int, max_tokens: int, grammar: CompiledGrammar | None, eos: frozenset[int]
) -> tuple[float, float]:
    """Seconds that one round takes, by the clock and of processor time."""
    for client in range(num_clients):
        token_ids = [2] + [1000 + (client * 97 + index) % 5000 for index in range(NUM_PROMPT - 1)]
        sampling = SamplingParams(temperature=1.0, seed=client, max_tokens=max_tokens, stop_token_ids=eos if grammar else frozenset())
        origin = RequestOrigin(fairness_key=str(client))
        engine.add(ScheduledRequest(f"{name}{client}", token_ids, sampling, time.monotonic(), origin, grammar=grammar))
    wall, processor, num_tokens = time.monotonic(), time.process_time(), 0
    while engine.has_work:
        deltas = engine.step().values()
        num_tokens += sum(len(delta.token_ids) for delta in deltas)
        assert not any(delta.error for delta in deltas)
    assert num_tokens == num_clients * max_tokens, f"{name}: {num_tokens} tokens"
    return time.monotonic() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    settings = Settings(enable_prefix_cache=False)
    engine = Engine(lambda: load_model(settings), EngineOptions(request_deadline_s=None))
    model = engine.load()
    assert model.grammars is not None
    start = time.monotonic()
    grammar = model.grammars.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA), "response_format"))
    print(f"compiled in {(time.monotonic() - start) * 1e3:.1f} ms")
    eos = frozenset(model.tokenizer.eos_token_ids)
    rounds: dict[str, list[tuple[float, float]]] = {"free": [], "constrained": []}
    for index in range(arguments.rounds + 1):
        for kind, found in rounds.items():
            figures = run(engine, f"{kind}{index}", arguments.clients, arguments.tokens, grammar if kind == "constrained" else None, eos)
            if index:  # the first warms up
                found.append(figures)
    num_tokens = arguments.clients * arguments.tokens
    for kind, found in rounds.items():
        wall, processor = (median(each) for each in zip(*found, strict=True))
        print(f"{kind}: {num_tokens / wall:.1f} tokens/s, {processor / num_tokens * 1e3:.2f} ms of processor time a token")
    walls, processors = zip(
        *[[free / bound for free, bound in zip(a, b, strict=True)] for a, b in zip(*rounds.values(), strict=True)], strict=True
    )
    print(f"constrained over free: {median(walls):.1%} by the clock, {median(processors):.1%} by processor time")


if __name__ == "__main__":
    main()
