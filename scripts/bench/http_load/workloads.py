"""What a load consists of: sessions of one or more turns, drawn by a seed.

A prompt is made of short common words, each of which is one token to most tokenizers; records hold the server's own count. A session of
one turn is a completion. A session of several turns is a chat that sends the model's answers back, as a person's client does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

_TEXT = (
    "the water runs down from old hills and past small towns where people keep boats bread clocks maps glass salt kites "
    "trains bells ink lamps wool corn horses rain snow light stone wood iron paper music bridges gardens winter summer"
)
WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Turn:
    """text: what the user sends. max_tokens: the length of the answer. think_s: the wait before the text is sent."""

    text: str
    max_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    workload: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """prompt, output: words in and tokens out of a turn, each as the least and the most.

    shared: number of words with which all sessions of one of the `groups` begin. think_s: mean of the exponential wait between turns.
    """

    name: str
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared: int = 0
    groups: int = 1
    turns: int = 1
    think_s: float = 0.0

    def session(self, random: Random) -> Session:
        prefix = _words(Random(f"{self.name} {random.randrange(self.groups)}"), self.shared) if self.shared else ""
        turns = []
        for i in range(self.turns):
            text = _words(random, random.randint(*self.prompt))
            think_s = random.expovariate(1 / self.think_s) if i and self.think_s else 0.0
            turns.append(Turn(text if i else f"{prefix} {text}".strip(), random.randint(*self.output), think_s))
        return Session(self.name, tuple(turns))


SHARED_PREFIX = Workload("shared-prefix", (16, 64), (16, 64), shared=512, groups=4)
CHAT = Workload("chat", (8, 32), (16, 64), turns=4, think_s=1.0)
LONG_PROMPT = Workload("long-prompt", (1000, 1500), (8, 32))
MIXES: dict[str, tuple[Workload, ...]] = {
    **{workload.name: (workload,) for workload in (SHARED_PREFIX, CHAT, LONG_PROMPT)},
    "mixed": (SHARED_PREFIX, SHARED_PREFIX, CHAT, LONG_PROMPT),
}


def sessions(mix: tuple[Workload, ...], seed: str) -> Iterator[Session]:
    """Yield sessions without end, the same for the same seed. Each is of a workload drawn from `mix`, which may name one several times."""
    random = Random(seed)
    while True:
        yield random.choice(mix).session(random)


def mean_turns(mix: tuple[Workload, ...]) -> float:
    return sum(workload.turns for workload in mix) / len(mix)


def _words(random: Random, number: int) -> str:
    return " ".join(random.choices(WORDS, k=number))
