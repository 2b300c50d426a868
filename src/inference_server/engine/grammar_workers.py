"""`GrammarWorkers`: the threads that compile grammars, so that neither the event loop nor the engine thread ever does."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from inference_server.core.errors import InvalidRequestError
from inference_server.core.grammar import AnswerSpec, CompiledGrammar
from inference_server.grammar.compiler import GrammarCompiler

_LIMIT_S = 5.0
_NUM_THREADS = 2  # a grammar that takes its time leaves another's compilation a thread


class GrammarWorkers:
    """limit_s: how long a request waits for its grammar."""

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")

    async def compile(self, compiler: GrammarCompiler, spec: AnswerSpec) -> CompiledGrammar:
        """Raises InvalidRequestError for a grammar that cannot be used, or takes too long."""
        if (found := compiler.recent(spec)) is not None:
            return found
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._pool, compiler.compile, spec)
        except TimeoutError:
            raise InvalidRequestError(f"the grammar was not compiled within {self._limit_s:.0f} s", param=spec.param) from None

    def close(self) -> None:
        """Begin no more; what runs ends in its own time."""
        self._pool.shutdown(wait=False, cancel_futures=True)
