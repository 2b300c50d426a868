"""An engine for benchmarks: a model folder that is only a config, words for text, and a clock for what the host waits for the device."""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inference_server.backends.factory import create_backend
from inference_server.core.model_spec import GenerationDefaults
from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from inference_server.engine.engine import Engine
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import kv_layout
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.admission import AdmissionController
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate


class WordTokenizer:
    """Spells every id as a short word, so that detokenising costs what it does for text."""

    bos_token_id = None
    eos_token_ids = ()
    special_tokens: Mapping[str, str] = {}
    strips_leading_space = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * len(text)  # no text is encoded here, only a dialect's markers, to see which of them are one token: none

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode()

    def token_bytes(self, token_id: int) -> bytes:
        return b" word"

    def is_special(self, token_id: int) -> bool:
        return False


class WaitClock:
    """Adds up what the engine thread spends waiting for the device; the rest of a step is the host's work."""

    def __init__(self, backend: Any) -> None:
        self.waited_s = 0.0
        self._collect = backend.collect
        backend.collect = self.collect

    def collect(self, step: Any) -> Any:
        start = time.perf_counter()
        result = self._collect(step)
        self.waited_s += time.perf_counter() - start
        return result


def create_engine(folder: Path, model: ModelOptions, scheduler: SchedulerOptions, cache: CacheOptions) -> Engine:
    """An engine that has loaded the model in `folder`."""

    def load() -> LoadedModel:
        backend = create_backend(model, folder)
        spec = backend.load()
        layout = kv_layout(cache, spec)
        backend.allocate(layout)
        manager = create_cache(layout, cache)
        admission = AdmissionController(manager, max_active_tokens=cache.max_active_tokens)
        options = scheduler.on(spec.device)
        batcher = ContinuousBatchScheduler(manager, options, supports_mixed=spec.supports_mixed, admission=admission)
        length = model.max_model_len or spec.max_model_len
        return LoadedModel(
            backend, batcher, WordTokenizer(spec.vocab_size), ChatTemplate("", {}), spec, GenerationDefaults(temperature=0.0), length
        )

    engine = Engine(load, EngineOptions(request_deadline_s=None, admission_deadline_s=None))
    engine.load()
    return engine


@contextmanager
def model_folder(config: Mapping[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        yield Path(folder)
