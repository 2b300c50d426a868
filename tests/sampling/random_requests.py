"""Random requests with any mixture of biases, penalties and allowed tokens, in a small vocabulary."""

from random import Random

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams

VOCAB = 101


def random_params(random: Random) -> SamplingParams:
    def maybe(value: object, otherwise: object) -> object:
        return value if random.random() < 0.5 else otherwise

    return SamplingParams(
        temperature=random.choice([0.0, 1.0]),
        seed=random.randrange(1 << 40),
        presence_penalty=maybe(random.uniform(-2, 2), 0.0),  # type: ignore[arg-type]
        frequency_penalty=maybe(random.uniform(-2, 2), 0.0),  # type: ignore[arg-type]
        repetition_penalty=maybe(random.uniform(0.5, 2), 1.0),  # type: ignore[arg-type]
        logit_bias=maybe(tuple((t, random.uniform(-100, 100)) for t in random.sample(range(VOCAB), 5)), ()),  # type: ignore[arg-type]
        allowed_token_ids=maybe(frozenset(random.sample(range(VOCAB), 60)), None),  # type: ignore[arg-type]
        stop_token_ids=frozenset(random.sample(range(VOCAB), 3)),
        min_tokens=random.randrange(4),
    )


def random_request(random: Random, slot: int = 0) -> ScheduledRequest:
    prompt = [random.randrange(VOCAB) for _ in range(random.randrange(1, 12))]
    output = [random.randrange(VOCAB // 4) for _ in range(random.randrange(12))]
    return ScheduledRequest(f"r{slot}", prompt + output, random_params(random), 0.0, num_prompt_tokens=len(prompt), slot=slot)
