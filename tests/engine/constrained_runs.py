"""Engines on `FakeBackend` whose answers follow a grammar."""

import json
from dataclasses import replace
from typing import Any

from engine_fakes import TOKENIZER, RecordList, VirtualClock, loaded, merged, run_dry

from inference_server.backends.fake_backend import FakeBackend
from inference_server.core.grammar import CompiledGrammar, GrammarKind, GrammarSpec
from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import CacheOptions, EngineOptions, SchedulerOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.engine.model_loader import grammar_compiler
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

EOS = TOKENIZER.eos_token_ids[0]
CLOSING = [EOS, *b'"}],0ab']
COMPILER = grammar_compiler(TOKENIZER, TOKENIZER.vocab_size)
assert COMPILER is not None

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def engine_on(backend: FakeBackend, num_blocks: int = 400, sink: RecordList | None = None) -> Engine:
    spec = backend.load()
    layout = KVLayout.from_num_blocks(spec.groups, 16, num_blocks)
    backend.allocate(layout)
    scheduler = ContinuousBatchScheduler(create_cache(layout, CacheOptions()), SchedulerOptions(max_batch_size=8))
    model = replace(loaded(scheduler=scheduler), backend=backend, spec=spec)
    engine = Engine(lambda: model, EngineOptions(), [sink] if sink else [], VirtualClock())
    engine.load()
    return engine


def compiled(schema: Any) -> CompiledGrammar:
    assert COMPILER is not None
    return COMPILER.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), "response_format"))


def request(name: str, grammar: CompiledGrammar | None, max_tokens: int = 400) -> ScheduledRequest:
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=frozenset({EOS}))
    return ScheduledRequest(name, TOKENIZER.encode(f"prompt {name}"), sampling, 100.0, grammar=grammar)


def answers(engine: Engine, *requests: ScheduledRequest) -> dict[str, OutputDelta]:
    for each in requests:
        engine.add(each)
    return {request_id: merged(deltas) for request_id, deltas in run_dry(engine).items()}
