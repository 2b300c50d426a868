"""The ids, positions and slots of a step's tokens: the kernel against the reference, with padding rows and padding tokens."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.kernels import reference
from inference_server.kernels.gpu.place_tokens import keep_tokens, place_tokens
from inference_server.kernels.step_rows import StepRows, TokenPlaces

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SLOTS, WIDTH, BLOCK = 9, 80, 16


def places(num_tokens: int) -> TokenPlaces:
    """Outputs that are poisoned, so that what is not written shows."""
    sizes = (num_tokens,), (num_tokens,), (2, num_tokens)
    return TokenPlaces(*(torch.full(size, -7, dtype=torch.int64, device=DEVICE) for size in sizes))


@pytest.mark.parametrize(
    "counts, num_tokens",
    [([1, 1, 1], 3), ([1, 5, 300], 320), ([1, 700, 0, 0], 701), ([], 5), ([1] * 8, 8), ([1, 600], 2000)],
    ids=["singles", "mixed", "padding rows", "nothing", "all slots", "much padding"],
)
def test_against_the_reference(counts: list[int], num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(len(counts))
    rows = len(counts)
    starts = torch.tensor([0, *counts]).cumsum(0)
    before = torch.randint(0, 500, (rows,), generator=generator)
    seq_lens = (torch.tensor(counts, dtype=torch.int64) + before) * (torch.tensor(counts, dtype=torch.int64) > 0)
    int32 = {"dtype": torch.int32, "device": DEVICE}
    step = StepRows(
        starts.tolist(),
        seq_lens.tolist(),
        starts.to(**int32),
        seq_lens.to(**int32),
        counts.count(1),
        torch.randperm(SLOTS, generator=generator)[:rows].to(**int32),
    )
    known = torch.randint(-1, 40, (num_tokens,), generator=generator).clamp(min=-1).to(**int32)
    newest = torch.arange(1000, 1000 + SLOTS, device=DEVICE)
    tables = torch.randint(0, 10_000, (2, SLOTS, WIDTH), generator=generator).to(**int32)
    ours, expected = places(num_tokens), places(num_tokens)
    place_tokens(step, known, newest, tables, BLOCK, ours)
    reference.place_tokens(step, known, newest, tables, BLOCK, expected)
    for name, mine, theirs in zip(TokenPlaces._fields, ours, expected, strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("rows", [1, 9, 300])
def test_sampled_ids_are_kept(rows: int) -> None:
    ids = torch.arange(500, 500 + rows, device=DEVICE)
    slots = torch.randperm(rows + 3, generator=torch.Generator().manual_seed(rows))[:rows].to(DEVICE, torch.int32)
    ours, expected = ([torch.full((rows + 3,), -7, device=DEVICE) for _ in range(2)] for _ in range(2))
    keep_tokens(ids, slots, *ours)
    reference.keep_tokens(ids, slots, *expected)
    for mine, theirs in zip(ours, expected, strict=True):
        assert torch.equal(mine, theirs)
