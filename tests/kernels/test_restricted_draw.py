"""The threshold search against the set that a sort finds: draws are the sampler's own, even in rows with too many candidates."""

from math import log

import pytest
import torch
from torch import Tensor
from triton_cases import DEVICE

from inference_server.core.sampling_params import SamplingParams
from inference_server.kernels.gpu.restricted_draw import CANDIDATES, restricted_draw
from inference_server.sampling.bisection import allowed_mask
from inference_server.sampling.noise import gumbel, hash_tokens, row_keys
from inference_server.sampling.nucleus import fixed_point_top_p
from inference_server.sampling.reference import allowed_set

CASES = [
    SamplingParams(top_k=1),
    SamplingParams(top_k=50, temperature=0.3),
    SamplingParams(top_k=10_000_000),
    SamplingParams(top_p=1e-12),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.999, temperature=0.2),
    SamplingParams(min_p=0.05),
    SamplingParams(min_p=1.0),
    SamplingParams(top_k=40, top_p=0.9),
    SamplingParams(top_k=400, top_p=0.9, min_p=0.1, temperature=2.0),
    SamplingParams(top_p=0.97, min_p=0.002),
    SamplingParams(top_k=20, temperature=1e-30),
    SamplingParams(),
    SamplingParams(temperature=0.0, top_k=5),
]


def column(values: list[float], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def drawn(logits: Tensor, cases: list[SamplingParams], position: int, capacity: int = CANDIDATES) -> list[int]:
    restricted = [not p.greedy and (p.top_k > 0 or p.top_p < 1 or p.min_p > 0) for p in cases]
    return restricted_draw(
        logits,
        column([p.temperature for p in cases], torch.float32),
        row_keys(range(len(cases)), [position] * len(cases), DEVICE),
        column([min(p.top_k, logits.shape[1]) for p in cases], torch.int32),
        column([max(fixed_point_top_p(p.top_p), 1) if p.top_p < 1 else 0 for p in cases], torch.int32),
        column([log(p.min_p) if p.min_p else -torch.inf for p in cases], torch.float32),
        column(restricted, torch.int32),
        capacity,
    ).tolist()


def expected(logits: Tensor, cases: list[SamplingParams], position: int) -> list[int]:
    """The draws by a sort. In a real vocabulary that would take minutes, so there by bisection, which is tested against the sort."""
    tokens = []
    for row, params in enumerate(cases):
        if params.greedy:
            tokens.append(int(logits[row].argmax()))
            continue
        values = (logits[row] - logits[row].max()) / params.temperature
        if len(values) < 10_000:
            ids = torch.tensor(sorted(allowed_set(values.cpu(), params)), device=DEVICE)
        else:
            ids = allowed_mask(values.unsqueeze(0), [params])[0].nonzero().flatten()
        noise = gumbel(row_keys([row], [position], DEVICE), hash_tokens(ids))[0]
        tokens.append(int(ids[(values[ids] + noise).argmax()]))
    return tokens


def random_logits(kind: str, vocab: int) -> Tensor:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(len(CASES), vocab, generator=generator)
    match kind:
        case "smooth":
            logits = logits * 3
        case "ties":
            logits = logits.round()
        case "constant":
            logits = torch.full_like(logits, -1.5)
        case "masked":
            logits[:, 1:] = logits[:, 1:].masked_fill(torch.rand(logits[:, 1:].shape, generator=generator) < 0.97, -torch.inf)
        case "peaked":
            logits[:, vocab // 2] = 40.0
    return logits.to(DEVICE)


# The interpreter takes half a second a row, so each kind gets a share of the cases.
@pytest.mark.parametrize(
    ("kind", "first", "capacity"),
    [
        ("smooth", 0, CANDIDATES),
        ("ties", 1, CANDIDATES),
        ("ties", 2, 16),
        ("constant", 3, 16),
        ("masked", 2, CANDIDATES),
        ("peaked", 3, 16),
    ],
)
def test_draws_come_from_exactly_the_set(kind: str, first: int, capacity: int) -> None:
    logits, cases = random_logits(kind, 5003)[first::4].contiguous(), CASES[first::4]
    assert drawn(logits, cases, 0, capacity) == expected(logits, cases, 0)


def test_equal_logits_keep_the_lower_ids() -> None:
    logits, params = torch.zeros(1, 2000, device=DEVICE), SamplingParams(top_p=0.0019)
    seen = {drawn(logits, [params], position)[0] for position in range(5)}
    assert seen <= {0, 1, 2, 3}
    assert len(seen) > 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about NaN, in the interpreter
def test_a_row_without_any_number_still_gets_a_token() -> None:
    logits = torch.full((2, 5000), -torch.inf, device=DEVICE)
    logits[1] = torch.nan
    for params in (SamplingParams(top_k=5), SamplingParams(temperature=0.0)):
        assert all(0 <= token < 5000 for token in drawn(logits, [params] * 2, 0))


@pytest.mark.gpu
@pytest.mark.parametrize("capacity", [CANDIDATES, 16], ids=["gathered", "in the logits"])
@pytest.mark.parametrize("kind", ["smooth", "ties", "constant", "masked", "peaked"])
def test_a_real_vocabulary(kind: str, capacity: int) -> None:
    logits = random_logits(kind, 262144)
    differing = [
        (row, position)
        for position in range(4)
        for row, (ours, other) in enumerate(zip(drawn(logits, CASES, position, capacity), expected(logits, CASES, position), strict=True))
        if ours != other
    ]
    # The last bit of a logarithm may decide a near tie.
    assert len(differing) <= 1, differing
