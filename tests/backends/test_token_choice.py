"""Tokens chosen by replayed launches and by single operations, in alternation: both use one sampler and draw the same tokens."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from inference_server.backends.token_choice import TokenChoice
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kernels.reference import keep_tokens
from inference_server.sampling.token_rows import Sampled, SamplingRows
from inference_server.sampling.token_sampler import TokenSampler

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.sampling.device_token_sampler import DeviceTokenSampler

VOCAB, MAX_ROWS = 300, 4
PLAIN = [SamplingParams(seed=5), SamplingParams(temperature=0.0), SamplingParams(seed=6, top_k=9), SamplingParams(seed=7)]
PENALISED = SamplingParams(seed=8, presence_penalty=1.0)


class DeviceSampling:
    """Samples as `TokenSampler` does on CUDA."""

    def __init__(self) -> None:
        self.sampler = DeviceTokenSampler(MAX_ROWS, VOCAB, torch.device("cpu"))
        self.capturable = self.sampler.sampler
        self.num_calls = 0

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        self.num_calls += 1
        return Sampled(self.sampler(logits, rows))


def test_replayed_draws_and_others_share_a_sampler() -> None:
    sampling = DeviceSampling()
    model = SimpleNamespace(compute_logits=lambda hidden: hidden.clone(), likeliest=lambda hidden: hidden.argmax(-1))
    newest_ids = torch.zeros(MAX_ROWS, dtype=torch.int64)
    slots = torch.arange(MAX_ROWS)
    batch = SimpleNamespace(
        max_rows=MAX_ROWS, newest_ids=newest_ids, keep=lambda ids, out: keep_tokens(ids, slots[: len(ids)], newest_ids, out)
    )
    hidden = torch.zeros(MAX_ROWS, VOCAB)
    choice = TokenChoice(model, batch, sampling)  # type: ignore[arg-type]
    launches = choice.launches(hidden, [1, 2, 4])
    graphs = SimpleNamespace(replay=lambda key: launches[key]())
    generator = torch.Generator().manual_seed(0)
    steps = [PLAIN[:1], [PENALISED, PLAIN[2]], PLAIN, [PLAIN[3], PENALISED], PLAIN[1:3], PLAIN[1:2], PLAIN[2:]]
    for position, params in enumerate(steps, 4):
        requests = [ScheduledRequest("r", [3] * position, p, 0.0, num_prompt_tokens=3, slot=slot) for slot, p in enumerate(params)]
        rows = SamplingRows(requests, [position] * len(params), range(len(params)))
        hidden.normal_(std=3, generator=generator)
        expected = TokenSampler(MAX_ROWS)(hidden[: len(params)].clone(), rows).token_ids
        assert choice(hidden, rows, graphs).token_ids.tolist() == expected.tolist()  # type: ignore[arg-type]
        assert batch.newest_ids[: len(params)].tolist() == expected.tolist()
    assert sampling.num_calls == sum(PENALISED in params for params in steps)
