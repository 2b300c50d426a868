"""One decode step of a released model, from ids to logits, as one CUDA graph: our operations beside PyTorch's.

    python scripts/bench/decode_step.py [gemma4-e2b] [--rows 1 8 32 256] [--context 128] [--kernels] [--int8] [--choose]

Weights are random, in the real shapes. Prints milliseconds a step on the CUDA operations, and on the reference operations with our
attention, also as a graph (not for models with experts). The floor is reading every weight once at the card's copy bandwidth. With
`--kernels` it also prints the time of each kernel of a step, by name. With `--choose` a step ends in one greedy token a row, not in logits.
"""

import argparse
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from graph_timer import copy_bytes_per_ms, graph_ms
from released_configs import CONFIGS
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from inference_server.core.kv_layout import LayerGroup
from inference_server.kernels import reference
from inference_server.kernels.gpu.compiled import compiled
from inference_server.kernels.gpu.linear import TritonLinear
from inference_server.kernels.gpu.ops import TritonOps
from inference_server.kernels.ops import PLAIN, Epilogue, Ops
from inference_server.kernels.quantize import QuantizedWeight, quantize_weight
from inference_server.kernels.step_rows import StepRows
from inference_server.models.attention import AttentionMetadata, GroupMetadata
from inference_server.models.registry import Model, find_family
from inference_server.models.weights import RandomTensors, Weights

BLOCK_SIZE = 16
CUDA, DTYPE = torch.device("cuda"), torch.bfloat16


class Int8Ops(TritonOps):
    """The CUDA operations, with every linear layer quantised."""

    def linear(self, weight: Tensor | QuantizedWeight, epilogue: Epilogue = PLAIN) -> TritonLinear:
        return TritonOps.linear(self, quantize_weight(weight) if isinstance(weight, Tensor) else weight, epilogue)


class StepKV:
    """Keys and values of one layer for each group. All layers of a group share them here, since only their shapes count."""

    def __init__(self, groups: tuple[LayerGroup, ...], num_blocks: int) -> None:
        self._group_of = {layer: g for g, group in enumerate(groups) for layer in group.layers}
        shapes = [(2, num_blocks, BLOCK_SIZE, group.num_kv_heads, group.head_dim) for group in groups]
        self._kv = [torch.randn(shape, device=CUDA).to(DTYPE) for shape in shapes]

    def group_of(self, layer: int) -> int:
        return self._group_of[layer]

    def key(self, layer: int) -> Tensor:
        return self._kv[self._group_of[layer]][0]

    def value(self, layer: int) -> Tensor:
        return self._kv[self._group_of[layer]][1]


def build(name: str, ops: Ops) -> tuple[Model, int]:
    """The model, and the bytes of the weights that a step of one row reads."""
    found = find_family(CONFIGS[name])
    assert found is not None
    config = found[1].config_from_dict(CONFIGS[name])
    weights = Weights(RandomTensors(), CUDA, DTYPE, ops)
    model = found[1].model(config, weights)
    looked_up = CONFIGS[name].get("hidden_size_per_layer_input", 0) * len(CONFIGS[name].get("layer_types", ())) * config.vocab_size
    if not CONFIGS[name].get("tie_word_embeddings"):
        looked_up += config.vocab_size * CONFIGS[name]["hidden_size"]
    experts = CONFIGS[name].get("num_experts", 0)
    if experts:
        chosen = CONFIGS[name].get("num_experts_per_tok", CONFIGS[name].get("top_k_experts"))
        num_layers = CONFIGS[name].get("num_hidden_layers") or len(CONFIGS[name]["layer_types"])
        expert = 3 * CONFIGS[name]["hidden_size"] * CONFIGS[name]["moe_intermediate_size"]
        looked_up += (experts - chosen) * expert * num_layers
    return model, DTYPE.itemsize * (weights.num_parameters - looked_up)


def step(model: Any, ops: Ops, rows: int, context: int, choose: bool = False) -> Callable[[], Tensor]:
    """A step of `rows` rows, each after `context` tokens. It ends in logits, or with `choose` in the likeliest token of each row."""
    groups = model.config.layer_groups(DTYPE.itemsize)
    blocks = -(-(context + 1) // BLOCK_SIZE)
    tables = torch.arange(rows * blocks, dtype=torch.int32, device=CUDA).view(rows, blocks) + 1
    starts, lengths = list(range(rows + 1)), [context + 1] * rows
    cu_seqlens_q, seq_lens = (torch.tensor(values, dtype=torch.int32, device=CUDA) for values in (starts, lengths))
    step_rows = StepRows(starts, lengths, cu_seqlens_q, seq_lens, num_single=rows)
    slots = tables[:, -1].long() * BLOCK_SIZE + context % BLOCK_SIZE
    bound = [GroupMetadata(slots, ops.bind_attention(tables, step_rows, g.window, BLOCK_SIZE)) for g in groups]
    metadata = AttentionMetadata(tuple(bound))
    kv = StepKV(groups, rows * blocks + 1)
    ids = torch.randint(0, model.config.vocab_size, (rows,), device=CUDA)
    positions = torch.full((rows,), context, device=CUDA)

    def run() -> Tensor:
        with torch.inference_mode():
            end: Callable[[Tensor], Tensor] = model.likeliest if choose else model.compute_logits
            return end(model.forward(ids, positions, metadata, kv))

    return run


def kernel_times(run: Callable[[], Tensor]) -> Iterator[str]:
    """Lines with the microseconds of each kernel in one step whose launches do not overlap."""
    run()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    for event in sorted(recorded.key_averages(), key=lambda event: -event.self_device_time_total)[:16]:
        yield f"{event.self_device_time_total:9.0f} us {event.count:5d} calls  {event.key[:90]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="gemma4-e2b", choices=CONFIGS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--int8", action="store_true", help="quantise the linear layers, except those of experts")
    parser.add_argument("--choose", action="store_true", help="end the step in one greedy token a row, as the engine's greedy steps do")
    parser.add_argument("--torch-compile", action="store_true", help="compile as CUSTOM_BACKEND_COMPILE does; not with --int8")
    arguments = parser.parse_args()
    ours = (Int8Ops if arguments.int8 else TritonOps)(DTYPE, *([compiled] if arguments.torch_compile else []))
    model, weight_bytes = build(arguments.model, ours)
    if arguments.int8:
        weight_bytes //= 2
    floor = weight_bytes / copy_bytes_per_ms()
    context, choose = arguments.context, arguments.choose
    times = {rows: graph_ms(step(model, ours, rows, context, choose)) for rows in arguments.rows}
    if arguments.kernels:
        for rows in arguments.rows:
            print(f"{rows} rows", *kernel_times(step(model, ours, rows, context, choose)), sep="\n")
    del model
    eager: dict[int, float] = {}
    if not CONFIGS[arguments.model].get("num_experts") and not arguments.int8:
        plain: Any = SimpleNamespace(**{**vars(reference), "bind_attention": ours.bind_attention})
        model, _ = build(arguments.model, plain)
        eager = {rows: graph_ms(step(model, plain, rows, context, choose)) for rows in arguments.rows}
    print(f"{torch.cuda.get_device_name()}, {arguments.model}, weights {weight_bytes / 1e9:.2f} GB, floor {floor:.2f} ms at one row")
    for rows in arguments.rows:
        print(f"{rows:4d} rows: {times[rows]:.3f} ms" + (f", PyTorch's operations {eager[rows]:.3f} ms" if rows in eager else ""))


if __name__ == "__main__":
    main()
