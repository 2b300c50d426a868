"""`ModelLoader`: from option dataclasses to a `LoadedModel`: checkpoint, tokenizer, backend, KV pool, scheduler.

Runs on the engine thread. What needs torch is imported there, in `load`, and not with this module: the port is open and `/health`
answers while the import takes its seconds, and an engine on another backend never pays for it.
"""

import logging
from pathlib import Path

from inference_server.checkpoints.errors import CheckpointError
from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import ModelSpec
from inference_server.core.options import CacheOptions, ModelOptions, SchedulerOptions
from inference_server.engine.generation_defaults import generation_defaults
from inference_server.engine.loaded_model import LoadedModel
from inference_server.grammar.compiler import GrammarCompiler
from inference_server.kv_cache.factory import create_cache
from inference_server.parsing.dialect import detect_dialect
from inference_server.scheduler.admission import AdmissionController
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.errors import ChatTemplateError, TokenizerError
from inference_server.tokenization.tokenizer import ByteTokenizer, Tokenizer

HOST_ARENA_BYTES = 4 * 2**30  # on the CPU the pool shares its memory with everything else that runs there

logger = logging.getLogger(__name__)


class ModelLoader:
    """Loads one model, once."""

    def __init__(self, model: ModelOptions, cache: CacheOptions, scheduler: SchedulerOptions) -> None:
        self._model = model
        self._cache = cache
        self._scheduler = scheduler

    def load(self, chat_template: Path | None = None) -> LoadedModel:
        """Everything that serving the model takes. chat_template: in place of the model's own. Raises ModelLoadError."""
        from inference_server.checkpoints.resolve import resolve_model

        folder = resolve_model(self._model.model_name, self._model.model_revision, self._model.cache_dir)
        try:
            return self._load(folder, chat_template)
        except (CheckpointError, TokenizerError) as error:
            if self._model.cache_dir not in folder.parents:
                raise
            raise ModelLoadError(f"{error}; delete {folder} to have it converted again") from error

    def _load(self, folder: Path, chat_template: Path | None) -> LoadedModel:
        from inference_server.backends import factory, profiler_ranges

        tokenizer = _tokenizer(folder, self._model.load_format)
        try:
            template = ChatTemplate.from_folder(folder, tokenizer, chat_template)
            template_prefix_len = template.template_prefix_len(tokenizer)
        except ChatTemplateError as error:
            raise ModelLoadError(str(error)) from error
        backend = factory.create_backend(self._model, folder)
        spec = backend.load()
        if isinstance(tokenizer, ByteTokenizer):
            tokenizer = ByteTokenizer(spec.vocab_size)
        length = self._model.max_model_len or spec.max_model_len
        if length > spec.max_model_len:
            raise ModelLoadError(f"MAX_MODEL_LEN {length} is above the model's own limit of {spec.max_model_len}")
        layout = kv_layout(self._cache, spec)
        backend.allocate(layout)
        scheduler = self._create_scheduler(layout, spec)
        defaults = generation_defaults(folder)
        logger.info(
            "ready: %s, %.2fB parameters in %s on %s, KV pool of %.2f GiB, %d tokens before every chat",
            spec.architecture,
            spec.num_parameters / 1e9,
            spec.dtype,
            spec.device,
            layout.arena_bytes / 2**30,
            template_prefix_len,
        )
        dialect = detect_dialect(template.source)
        grammars = grammar_compiler(tokenizer, spec.vocab_size)
        ranges = profiler_ranges.ranges_on(spec.device) if self._model.profiler_ranges else None
        return LoadedModel(backend, scheduler, tokenizer, template, spec, defaults, length, dialect, grammars, ranges)

    def _create_scheduler(self, layout: KVLayout, spec: ModelSpec) -> ContinuousBatchScheduler:
        cache = create_cache(layout, self._cache)
        admission = AdmissionController(cache, max_active_tokens=self._cache.max_active_tokens)
        options = self._scheduler.on(spec.device)
        return ContinuousBatchScheduler(cache, options, supports_mixed=spec.supports_mixed, admission=admission)


def grammar_compiler(tokenizer: TokenizerLike, vocab_size: int) -> GrammarCompiler | None:
    """None for a model without an end-of-text token, whose answers a grammar could not end."""
    if not tokenizer.eos_token_ids:
        return None
    return GrammarCompiler(
        [tokenizer.token_bytes(index) for index in range(vocab_size)],
        [index for index in range(vocab_size) if tokenizer.is_special(index)],
        tokenizer.eos_token_ids,
        lambda text: tokenizer.encode(text, add_special_tokens=False),
    )


def _tokenizer(folder: Path, load_format: str) -> TokenizerLike:
    """The folder's own. Random weights say nothing anyway, so with them bytes will do. Raises TokenizerError."""
    if load_format != "dummy" or (folder / "tokenizer.json").exists():
        return Tokenizer.from_folder(folder)
    logger.warning("%s: no tokenizer.json; text is taken as bytes, and other tokens are shown by their numbers", folder)
    return ByteTokenizer()


def kv_layout(options: CacheOptions, spec: ModelSpec) -> KVLayout:
    """The arena that the options ask for, on a CPU at most HOST_ARENA_BYTES. Raises ModelLoadError when not a single slab would fit."""
    if options.num_blocks is not None:
        return KVLayout.from_num_blocks(spec.groups, options.block_size, options.num_blocks)
    arena_bytes = int(spec.free_bytes * options.memory_fraction)
    if spec.device == "cpu":
        arena_bytes = min(arena_bytes, HOST_ARENA_BYTES)
    layout = KVLayout.from_bytes(spec.groups, options.block_size, arena_bytes)
    if layout.num_slabs < 2:
        raise ModelLoadError(f"no memory for a KV pool: {arena_bytes / 2**20:.0f} MiB on {spec.device}; set KV_CACHE_NUM_BLOCKS")
    return layout
