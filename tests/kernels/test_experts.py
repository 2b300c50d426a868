"""Routing and experts against the reference, with numbers of rows that cover every way of handling them."""

import pytest
import torch
from triton_cases import DEVICE, assert_near, randn, weights

from inference_server.kernels import reference
from inference_server.kernels.gpu.expert_blocks import expert_blocks
from inference_server.kernels.gpu.experts import TritonExperts
from inference_server.kernels.gpu.route import route
from inference_server.kernels.ops import Activation


@pytest.mark.parametrize("tokens, num_experts, top_k", [(1, 8, 2), (3, 12, 3), (2, 128, 8)])
@pytest.mark.parametrize("normalize, scaled", [(False, False), (True, False), (True, True)])
def test_route(tokens: int, num_experts: int, top_k: int, normalize: bool, scaled: bool) -> None:
    torch.manual_seed(0)
    scores = 3 * randn(tokens, num_experts)
    scale = torch.rand(num_experts, device=DEVICE) + 0.5 if scaled else None
    expert_ids, shares = route(scores, top_k, normalize, scale)
    expected_ids, expected = reference.route(scores, top_k, normalize, scale)
    assert expert_ids.tolist() == expected_ids.tolist()
    torch.testing.assert_close(shares, expected)


def test_scores_in_partial_sums_are_added_up() -> None:
    torch.manual_seed(0)
    parts = randn(3, 2, 12)
    expert_ids, shares = route(parts, 4, True)
    expected_ids, expected = reference.route(parts.sum(0), 4, True)
    assert expert_ids.tolist() == expected_ids.tolist()
    torch.testing.assert_close(shares, expected)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_padding_that_is_not_a_number_is_routed_somewhere() -> None:
    scores = torch.full((1, 12), torch.nan, device=DEVICE)
    assert sorted(set(route(scores, 4, True)[0][0].tolist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("scan", [8, 2048])
def test_pairs_are_sorted_into_blocks_of_one_expert(scan: int) -> None:
    """With one program for each expert, and with one for each expert and part of the pairs."""
    torch.manual_seed(0)
    num_experts, size = 6, 4
    expert_ids = torch.stack([torch.randperm(5)[:2] for _ in range(13)]).int().to(DEVICE)  # nobody chooses the last expert
    blocks = expert_blocks(expert_ids, num_experts, size, scan)
    flat, seen = expert_ids.flatten().tolist(), []
    for expert, pairs in zip(blocks.experts.tolist(), blocks.pairs.view(-1, size).tolist(), strict=True):
        if expert >= 0:
            filled = [pair for pair in pairs if pair >= 0]
            assert filled and filled == sorted(filled) and {flat[pair] for pair in filled} == {expert}
            seen += filled
    assert sorted(seen) == list(range(26))


def check(tokens: int, num_experts: int, top_k: int, hidden_size: int, size: int, activation: Activation, dtype: torch.dtype) -> None:
    gate_up = weights(num_experts * 2 * size, hidden_size, dtype).view(num_experts, 2 * size, hidden_size)
    down = weights(num_experts * hidden_size, size, dtype).view(num_experts, hidden_size, size)
    x = randn(tokens, hidden_size, dtype=dtype)
    expert_ids, shares = reference.route(3 * randn(tokens, num_experts), top_k, normalize=True)
    got = TritonExperts(gate_up, down, activation)(x, expert_ids.int(), shares)
    if got.ndim == 3:
        got = got.float().sum(0).to(dtype)
    expected = reference.moe_experts(x.float(), gate_up.float(), down.float(), expert_ids, shares, activation)
    assert_near(got, expected.to(dtype))


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("tokens", [1, 2, 16, 17])
def test_few_rows(tokens: int, activation: Activation) -> None:
    torch.manual_seed(tokens)
    check(tokens, 6, 3, 48, 40, activation, torch.float32)


@pytest.mark.parametrize("tokens", [70, 200], ids=["narrow tiles", "wide tiles"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_many_rows(tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check(tokens, 5, 2, 32, 24, Activation.SILU, dtype)


@pytest.mark.parametrize("tokens", [1, 7])
def test_a_token_does_not_depend_on_the_others(tokens: int) -> None:
    """Two runs give the same bits, and what a neighbour has, even NaN, stays with the neighbour."""
    torch.manual_seed(0)
    layer = TritonExperts(weights(6 * 32, 24).view(6, 32, 24), weights(6 * 24, 16).view(6, 24, 16), Activation.SILU)
    x, (expert_ids, shares) = randn(tokens, 24), reference.route(randn(tokens, 6), 2, normalize=True)
    first = layer(x, expert_ids.int(), shares)
    x[1:] = torch.nan
    again = layer(x, expert_ids.int(), shares)
    assert again[..., :1, :].equal(first[..., :1, :])


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 8, 16, 33, 64, 65, 256, 1000, 4096])
@pytest.mark.parametrize("hidden_size, size", [(2048, 768), (2816, 704)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_real_shapes(tokens: int, hidden_size: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check(tokens, 128, 8, hidden_size, size, Activation.SILU, dtype)
