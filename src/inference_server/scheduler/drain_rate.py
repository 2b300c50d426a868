"""`DrainRate`: how fast the queue is served, measured. Tells what a request that joins it now would wait."""

from dataclasses import dataclass

_NUM_REMEMBERED = 32
_NUM_NEEDED = 8


@dataclass(slots=True)
class DrainRate:
    """Tokens a second that are admitted while others wait, over about the last `_NUM_REMEMBERED` admissions.

    Only time with a queue counts: without one, the rate is that of the arrivals and says nothing about what could be served.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    num_admitted: int = 0
    last_time: float | None = None

    def observe(self, now: float, num_admitted: int, tokens: int, num_waiting: int) -> None:
        """A scheduling pass at `now` admitted `num_admitted` requests of `tokens` tokens, and `num_waiting` wait on."""
        if self.last_time is not None:
            keep = (1 - 1 / _NUM_REMEMBERED) ** num_admitted
            self.tokens = self.tokens * keep + tokens
            self.seconds = self.seconds * keep + now - self.last_time
            self.num_admitted += num_admitted
        self.last_time = now if num_waiting else None

    @property
    def tokens_per_s(self) -> float:
        """0 until enough has been seen."""
        return self.tokens / self.seconds if self.num_admitted >= _NUM_NEEDED and self.seconds > 0 else 0.0
