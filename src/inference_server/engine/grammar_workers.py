"""`GrammarWorkers`: the threads that compile grammars, so that neither the event loop nor the engine thread ever does."""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from inference_server.core.errors import InvalidRequestError, RequestAbortedError
from inference_server.core.generation import GenerationRequest
from inference_server.core.grammar import AnswerSpec, CompiledGrammar
from inference_server.engine.answer_spec import answer_spec
from inference_server.engine.loaded_model import LoadedModel

_LIMIT_S = 5.0
_CACHE_SIZE = 64
_NUM_THREADS = 2  # a grammar that takes its time leaves another's compilation a thread


class GrammarWorkers:
    """Compiles the grammars of one model and keeps those used last. limit_s: how long a request waits for one. Methods run on the loop."""

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")
        self._recent: OrderedDict[AnswerSpec, CompiledGrammar] = OrderedDict()

    async def compile(self, request: GenerationRequest, model: LoadedModel) -> CompiledGrammar | None:
        """What the answer must fit; None for any text.

        Raises InvalidRequestError for what cannot be used, or takes too long, and RequestAbortedError when `close` comes first.
        """
        spec, compiler = answer_spec(request, model), model.grammars
        if spec is None or compiler is None:
            return None
        if (found := self._recent.get(spec)) is not None:
            self._recent.move_to_end(spec)
            return found
        try:
            async with asyncio.timeout(self._limit_s):
                grammar = await asyncio.get_running_loop().run_in_executor(self._pool, compiler.compile, spec)
        except TimeoutError:
            raise InvalidRequestError(f"the grammar was not compiled within {self._limit_s:g} s", param=spec.param) from None
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise RequestAbortedError("the server is shutting down") from None  # nobody cancelled it: `close` has what was queued
        self._recent[spec] = grammar
        if len(self._recent) > _CACHE_SIZE:
            self._recent.popitem(last=False)
        return grammar

    def close(self) -> None:
        """Begin no more; what runs ends in its own time."""
        self._pool.shutdown(wait=False, cancel_futures=True)
