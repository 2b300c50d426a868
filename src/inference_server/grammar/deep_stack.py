"""Work on a stack of its own: reading a grammar recurses as deep as its rules nest, and a stack that overflows ends the process.

The deepest grammar of 64 Ki characters takes between 8 and 16 MiB. Following a grammar does not recurse.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_STACK_BYTES = 128 * 2**20  # of addresses; memory is only taken as far as it is used


class DeepStack:
    """Thread-safe. Python has one stack size for all threads that it starts, so ours are started one at a time."""

    def __init__(self) -> None:
        self._starting = threading.Lock()

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a new thread, wait for it, and return or raise what it does."""
        done: Future[T] = Future()

        def carry_out() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # a panic in Rust is no Exception, and the caller waits for a result or an error
                done.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        thread = threading.Thread(target=carry_out, name="deep-stack", daemon=True)
        with self._starting:
            usual = threading.stack_size(_STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(usual)
        return done.result()
