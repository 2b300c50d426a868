"""How the keys of decode rows are divided among programs, and that every shape has a launch."""

import pytest
import torch

from inference_server.kernels.gpu.attention_tuning import MAX_SPLITS, DecodeLaunch, decode_launch, prefill_launch

LAUNCH = DecodeLaunch(block_n=32, num_warps=4, num_stages=2, programs=132, min_keys=64, long_keys=1024)


@pytest.mark.parametrize(
    "num_heads_of_rows, max_keys, splits",
    [
        (1, 1, (1, 64)),  # nothing to split
        (1, 512, (8, 64)),  # a window: as many parts as are worth a program
        (1, 131_072, (MAX_SPLITS, 64)),
        (32, 512, (5, 64)),  # enough to fill the card
        (32, 8192, (8, 64)),  # long rows: more parts, so that programs end together
        (256, 512, (1, 1024)),  # the rows fill the card
        (128, 8192, (8, 64)),
        (256, 131_072, (4, 1024)),  # no more programs than there should be
        (10_000, 131_072, (1, 1024)),
    ],
)
def test_splits(num_heads_of_rows: int, max_keys: int, splits: tuple[int, int]) -> None:
    assert LAUNCH.splits(num_heads_of_rows, max_keys) == splits


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256, 512])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_a_card_nobody_measured_gets_tiles_of_moderate_size(head_dim: int, itemsize: int) -> None:
    decode, prefill = (choose(head_dim, itemsize, torch.device("cpu")) for choose in (decode_launch, prefill_launch))
    row = head_dim * itemsize
    assert 2 * decode.block_n * row <= 65536
    assert (prefill.block_m + 2 * prefill.block_n) * row <= 131072
