"""The state on the device gives the logits of the stateless definition, even while the newest token of a row is not on the host."""

from random import Random

import pytest
import torch
from random_requests import VOCAB, random_request

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.adjustment import adjust_logits, apply_masks
from inference_server.sampling.token_rows import SamplingRows

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.sampling.device_adjustment import DeviceAdjustment

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS = 5


class OverlappedRows:
    """Requests in slots whose sampled tokens come to the host one step late. They leave, return and are replaced at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.requests = [random_request(self.random, slot) for slot in range(SLOTS)]
        self.late: dict[int, int] = {}
        self.adjustment = DeviceAdjustment(SLOTS, VOCAB, DEVICE)

    def step(self) -> None:
        slots = self.random.sample(range(SLOTS), self.random.randrange(1, SLOTS + 1))
        requests = [self.requests[slot] for slot in slots]
        positions = [len(self.requests[slot].token_ids) + (slot in self.late) for slot in slots]
        logits = 4 * torch.randn(len(slots), VOCAB, generator=self.generator)
        masks = [self._mask() for _ in slots]
        ours = logits.clone().to(DEVICE)
        self.adjustment.apply(ours, SamplingRows(requests, positions, slots, masks))
        for slot, token in self.late.items():
            self.requests[slot].token_ids.append(token)
        self.late.clear()
        apply_masks(logits, masks)
        assert torch.equal(ours.cpu(), adjust_logits(logits, requests, positions))
        sampled = [self.random.randrange(VOCAB // 4) for _ in slots]
        self.adjustment.count(torch.tensor(sampled, device=DEVICE))
        self.late.update(zip(slots, sampled, strict=True))

    def shake(self) -> None:
        """Preempt a row, or give its slot to a new request. Only a row whose tokens are all on the host may lose its slot."""
        for slot in range(SLOTS):
            if slot in self.late:
                continue
            if self.random.random() < 0.2:
                self.requests[slot] = random_request(self.random, slot)
            elif self.random.random() < 0.2:
                self.requests[slot].num_preemptions += 1

    def _mask(self) -> bytes | None:
        if self.random.random() < 0.7:
            return None
        return self.random.randbytes(-(-VOCAB // 32) * 4)


@pytest.mark.parametrize("seed", range(4))
def test_every_logit_equals_the_definition_through_random_steps(seed: int) -> None:
    rows = OverlappedRows(seed)
    for _ in range(25):
        rows.shake()
        rows.step()


def test_without_requests_for_it_there_is_no_state_and_no_change() -> None:
    adjustment, logits = DeviceAdjustment(64, VOCAB, DEVICE), torch.randn(2, VOCAB, device=DEVICE)
    before, request = logits.clone(), ScheduledRequest("r", [1, 2, 3], SamplingParams(temperature=0.5, top_k=3), 0.0)
    adjustment.apply(logits, SamplingRows([request] * 2, [3, 3], [0, 1]))
    adjustment.count(torch.tensor([4, 5], device=DEVICE))
    assert torch.equal(logits, before)
    assert not adjustment._seen.numel() and not adjustment._masks.numel()
