"""What a virtual user says, turn by turn, from a random stream of its own.

Nothing here depends on what the server answers or how long it takes: a user with the same seed and number draws the same turns. Long
prompts quote one of a few documents that all users of a seed share, as people do who ask about the same manual.
"""

from dataclasses import dataclass
from random import Random

from inference_server.simulator.options import Bucket, SimulationOptions

_SUBJECTS = ("the harbour", "a bicycle", "the night train", "a bread oven", "the library", "a lighthouse", "the orchard", "a telescope")
_PARTS = ("the door", "a lamp", "the old map", "the timetable", "a wheel", "the garden wall", "the ledger", "a brass bell")
_ACTIONS = ("was repaired", "was sold", "was moved upstairs", "broke down", "was painted blue", "was found again", "was measured twice")
_TIMES = ("in March", "before noon", "after the storm", "on the second day", "last winter", "at six o'clock", "during the fair")
_QUESTIONS = (
    "Why does {} matter to a small town?",
    "Write four lines of verse about {}.",
    "Explain {} to a child of six.",
    "List three things that can go wrong with {}.",
    "How would you keep {} in good order?",
    "Tell a short story that begins at {}.",
)
_ABOUT_TEXT = ("Sum this up in two sentences.", "What happened first, and what last?", "Which of these events was the strangest, and why?")
_FOLLOW_UPS = ("Say that again in fewer words.", "What would an expert object to?", "Give one example.", "And what follows from it?")
_SENTENCES = {Bucket.MEDIUM: (8, 16), Bucket.LONG: (50, 90)}
_NUM_DOCUMENTS = 6


@dataclass(frozen=True, slots=True)
class Turn:
    """text: what is new in this turn. sampling_seed: for the server's own draws. think_s: the pause after the answer."""

    bucket: Bucket
    text: str
    max_tokens: int
    sampling_seed: int
    think_s: float


class PromptStream:
    """The conversations of one user, without end."""

    def __init__(self, options: SimulationOptions, user: int) -> None:
        self._options = options
        self._random = Random(f"{options.seed}/user/{user}")

    def conversation(self) -> list[Turn]:
        """The turns of the next one; at least one. The first draws from the buckets, the others are short questions that follow it."""
        options, random = self._options, self._random
        bucket = random.choices(list(options.weights), list(options.weights.values()))[0]
        opening = self._turn(bucket, self._opening(bucket))
        num_more = random.randint(0, options.max_turns - 1)
        return [opening, *(self._turn(Bucket.SHORT, random.choice(_FOLLOW_UPS)) for _ in range(num_more))]

    def _opening(self, bucket: Bucket) -> str:
        random = self._random
        if bucket is Bucket.SHORT:
            return random.choice(_QUESTIONS).format(random.choice(_SUBJECTS))
        source = random if bucket is Bucket.MEDIUM else Random(f"{self._options.seed}/document/{random.randrange(_NUM_DOCUMENTS)}")
        return f"{_passage(source, source.randint(*_SENTENCES[bucket]))}\n\n{random.choice(_ABOUT_TEXT)}"

    def _turn(self, bucket: Bucket, text: str) -> Turn:
        random, options = self._random, self._options
        return Turn(
            bucket=bucket,
            text=text,
            max_tokens=random.randint(max(1, options.max_tokens // 4), options.max_tokens),
            sampling_seed=random.getrandbits(31),
            think_s=options.think_time_s * random.uniform(0.5, 1.5),
        )


def _passage(random: Random, num_sentences: int) -> str:
    return " ".join(
        f"{random.choice(_PARTS).capitalize()} of {random.choice(_SUBJECTS)} {random.choice(_ACTIONS)} {random.choice(_TIMES)}."
        for _ in range(num_sentences)
    )
