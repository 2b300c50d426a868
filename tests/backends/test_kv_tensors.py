"""The arena's views: where a block lies, that groups in different slabs do not overlap, and that copies include all layers."""

import sys

import psutil
import pytest
import torch

from inference_server.backends.kv_tensors import KVTensors
from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.plan import BlockCopy

FULL = LayerGroup(layers=(2,), num_kv_heads=2, head_dim=8, itemsize=4)
WINDOW = LayerGroup(layers=(0, 1, 3), num_kv_heads=2, head_dim=8, itemsize=4, window=8)


def make() -> KVTensors:
    return KVTensors(KVLayout((FULL, WINDOW), block_size=4, num_slabs=3), torch.float32, "cpu")


def test_views_have_the_blocks_of_the_layout() -> None:
    kv = make()
    assert kv.key(2).shape == (9, 4, 2, 8)
    assert kv.value(3).shape == (3, 4, 2, 8)
    assert [kv.group_of(layer) for layer in range(4)] == [1, 1, 0, 1]
    assert kv.arena.numel() == kv.layout.arena_bytes


def test_a_block_starts_at_its_byte_and_every_element_has_its_own_place() -> None:
    kv = make()
    words = kv.arena.view(torch.float32)
    for group, layers in enumerate(((2,), (0, 1, 3))):
        words.copy_(torch.arange(words.numel()))
        first = kv.key(layers[0])[:, 0, 0, 0]
        assert first.tolist() == [b * kv.layout.block_bytes(group) // 4 for b in range(kv.layout.num_blocks(group))]
        seen = torch.cat([view.flatten() for layer in layers for view in (kv.key(layer), kv.value(layer))])
        assert seen.sort().values.equal(torch.arange(words.numel(), dtype=torch.float32))


def test_copy_takes_all_layers_of_the_group_in_order() -> None:
    kv = make()
    for layer in (0, 1, 3):
        kv.key(layer)[1] = layer + 1
        kv.value(layer)[1] = -layer - 1
    kv.copy_blocks([BlockCopy(1, 1, 2), BlockCopy(1, 2, 0)])
    for layer in (0, 1, 3):
        assert (kv.key(layer)[[0, 2]] == layer + 1).all()
        assert (kv.value(layer)[[0, 2]] == -layer - 1).all()


def test_an_element_size_that_differs_is_refused() -> None:
    with pytest.raises(ValueError, match="element size"):
        KVTensors(KVLayout((FULL,), block_size=4, num_slabs=2), torch.bfloat16, "cpu")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_arena_on_the_cpu_costs_no_memory_before_it_is_written() -> None:
    before = psutil.Process().memory_info().rss
    kv = KVTensors(KVLayout((FULL, WINDOW), block_size=4, num_slabs=400_000), torch.float32, "cpu")
    assert kv.arena.numel() > 2**29
    assert psutil.Process().memory_info().rss - before < 2**26
