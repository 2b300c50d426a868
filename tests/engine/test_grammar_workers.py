"""Where grammars are compiled, how long that may take, and which are kept."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from constrained_runs import COMPILER
from engine_fakes import loaded
from engine_serving import asking, serving, text_of, until

from inference_server.core.errors import InvalidRequestError, RequestAbortedError
from inference_server.core.grammar import AnswerSpec, CompiledGrammar, GrammarKind, GrammarSpec
from inference_server.engine.grammar_workers import GrammarWorkers
from inference_server.engine.loaded_model import LoadedModel

pytestmark = pytest.mark.anyio


class SlowCompiler:
    """A compiler that says in which threads it compiles, and waits until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.threads: list[str] = []

    def compile(self, spec: AnswerSpec) -> CompiledGrammar:
        self.threads.append(threading.current_thread().name)
        assert self.may.wait(20)
        assert COMPILER is not None
        return COMPILER.compile(spec)


def choice(text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.CHOICE, f'["{text}"]', "structured_outputs")


def model_with(compiler: Any) -> LoadedModel:
    return replace(loaded(), grammars=compiler)


async def test_loop_and_engine_go_on_while_a_grammar_compiles_once() -> None:
    slow = SlowCompiler()
    async with serving(model_with(slow)) as engine:
        waiting = asyncio.create_task(text_of(engine, "a", grammar=choice("a")))
        await until(lambda: bool(slow.threads))
        assert await text_of(engine, "free") == "free"
        assert not waiting.done()
        slow.may.set()
        assert await waiting == "a"
        assert await text_of(engine, "a", grammar=choice("a")) == "a"
    assert [name.rpartition("_")[0] for name in slow.threads] == ["grammar"]


async def test_whoever_waits_too_long_is_told_which_parameter_it_was() -> None:
    slow, workers = SlowCompiler(), GrammarWorkers(limit_s=0.01)
    with pytest.raises(InvalidRequestError, match=r"0\.01 s") as caught:
        await workers.compile(asking("a", grammar=choice("a")), model_with(slow))
    assert caught.value.param == "structured_outputs"
    slow.may.set()
    workers.close()


async def test_a_grammar_that_is_queued_when_the_server_stops_is_an_error_and_not_a_cancelled_request() -> None:
    slow, workers = SlowCompiler(), GrammarWorkers()
    asked = [asyncio.create_task(workers.compile(asking("a", grammar=choice(text)), model_with(slow))) for text in "abcd"]
    await until(lambda: len(slow.threads) == 2)
    asked[2].cancel()
    workers.close()
    slow.may.set()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(end) for end in ends[2:]] == [asyncio.CancelledError, RequestAbortedError]
    assert not any(isinstance(end, BaseException) for end in ends[:2])


async def test_the_grammars_used_last_are_kept() -> None:
    slow, workers = SlowCompiler(), GrammarWorkers()
    slow.may.set()
    model = model_with(slow)
    first = await workers.compile(asking("a", grammar=choice("a")), model)
    for index in range(63):
        await workers.compile(asking("a", grammar=choice(str(index))), model)
    assert await workers.compile(asking("a", grammar=choice("a")), model) is first
    for index in range(64):
        await workers.compile(asking("a", grammar=choice(f"b{index}")), model)
    assert await workers.compile(asking("a", grammar=choice("a")), model) is not first
    workers.close()
