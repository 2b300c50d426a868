"""Requests with penalties, biases and a least length, and the tokens that they must get: from transformers' logits and plain numbers."""

from collections.abc import Iterator
from random import Random

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.sampler import Sampler

VOCAB, END = 128, 7
SEEDED = SamplingParams(temperature=1.0, seed=11, presence_penalty=0.8, frequency_penalty=0.3, repetition_penalty=1.2, max_tokens=30)


def tiny_model() -> Gemma3ForCausalLM:
    torch.manual_seed(5)
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=16,
        sliding_window_pattern=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return Gemma3ForCausalLM(config).eval()


def straight_run(model: Gemma3ForCausalLM, prompt: list[int], params: SamplingParams) -> list[int]:
    output: list[int] = []
    while len(output) < params.max_tokens:
        logits = model(torch.tensor([prompt + output])).logits[0, -1].tolist()
        for token in range(VOCAB):
            seen = output.count(token)
            if token in params.stop_token_ids and len(output) < params.min_tokens:
                logits[token] = -torch.inf
            logits[token] += dict(params.logit_bias).get(token, 0.0)
            if seen or token in prompt:
                logits[token] *= params.repetition_penalty if logits[token] <= 0 else 1 / params.repetition_penalty
            logits[token] -= params.frequency_penalty * seen + params.presence_penalty * min(seen, 1)
        output += Sampler()(torch.tensor([logits]), [params], [len(prompt) + len(output)]).tolist()
        if output[-1] in params.stop_token_ids:
            break
    return output


def requests_of(random: Random, number: int) -> Iterator[ScheduledRequest]:
    beginning = [random.randrange(VOCAB) for _ in range(16)]
    for n in range(number):
        params = SamplingParams(
            temperature=random.choice([0.0, 0.8, 1.3]),
            top_p=random.choice([1.0, 0.9]),
            seed=random.randrange(1 << 30),
            presence_penalty=random.choice([0.0, 1.5]),
            frequency_penalty=random.choice([0.0, 0.7, -0.4]),
            repetition_penalty=random.choice([1.0, 1.4]),
            logit_bias=random.choice([(), ((END, 4.0), (3, -5.0))]),
            stop_token_ids=frozenset({END}),
            min_tokens=random.choice([0, 6]),
            max_tokens=random.randrange(8, 30),
        )
        prompt = beginning[: random.choice([0, 16])] + [random.randrange(VOCAB) for _ in range(random.randrange(1, 30))]
        yield ScheduledRequest(f"r{n}", prompt, params, 100.0 + n / 100)
