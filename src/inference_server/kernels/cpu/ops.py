"""`CpuOps`: the operations of a forward on compiled CPU kernels, for float32 activations over a bfloat16 cache.

A call costs a few microseconds, where PyTorch needs ten small operations of one or two microseconds each. A decoded token's result is
the same bits for any batch and thread count.
"""

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from itertools import pairwise

import torch
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.composed import ComposedLinear
from inference_server.kernels.cpu.attention import MAX_ITEM_HEADS, decode_attention
from inference_server.kernels.cpu.chunk_attention import ChunkAttention, chunk_attention
from inference_server.kernels.cpu.gated import gated_gelu_tanh, gated_silu
from inference_server.kernels.cpu.jit import CompiledKernel, cache_at, can_compile, compile_kernels, floats_at, num_threads, trace
from inference_server.kernels.cpu.linears import CpuLinears
from inference_server.kernels.cpu.norm import add_rms_norm, rms_norm
from inference_server.kernels.cpu.rotary import norm_rotate_store
from inference_server.kernels.cpu.vectors import VectorUnit, cpu_features, vector_unit
from inference_server.kernels.ops import PLAIN, Activation, AddNorm, Attention, Epilogue, FusedLinear, KVSlots
from inference_server.kernels.quantize import QuantizedWeight
from inference_server.kernels.reference_attention import MassAttention, PagedAttention
from inference_server.kernels.step_rows import StepRows

_NO_WINDOW = 1 << 62


@cache
def compile_cpu_ops() -> "CpuOps | None":
    """Compiles the kernels for this machine (about half a second), once a process, or returns None where that cannot be done."""
    if not can_compile():
        return None
    unit = vector_unit(cpu_features())
    kernels: list[Callable[..., None]] = [rms_norm, add_rms_norm, norm_rotate_store, decode_attention, gated_gelu_tanh, gated_silu]
    if unit and unit.tiles:
        kernels.append(chunk_attention)
    return CpuOps(compile_kernels([trace(kernel) for kernel in kernels]), unit)


class CpuOps:
    """An `Ops` (see there and `kernels.reference`). unit: linear layers are compiled for it, at the first one; None: torch's."""

    experts = staticmethod(reference.experts)
    place_tokens = staticmethod(reference.place_tokens)
    keep_tokens = staticmethod(reference.keep_tokens)
    rotary_angles = staticmethod(reference.rotary_angles)
    route = staticmethod(reference.route)
    fused = staticmethod(reference.fused)

    def __init__(self, kernels: Mapping[str, CompiledKernel], unit: VectorUnit | None) -> None:
        self._rms_norm = kernels["rms_norm"]
        self._add_rms_norm = kernels["add_rms_norm"]
        self._norm_rotate_store = kernels["norm_rotate_store"]
        self._decode_attention = kernels["decode_attention"]
        self._chunk_attention = ChunkAttention(kernels["chunk_attention"]) if "chunk_attention" in kernels else None
        self._gated = {activation: kernels[f"gated_{activation}"] for activation in Activation}
        self._linears = CpuLinears(unit) if unit else None

    def linear(self, weight: Tensor | QuantizedWeight, epilogue: Epilogue = PLAIN) -> FusedLinear:
        product = self._linears(weight) if self._linears else reference.product(weight)
        return ComposedLinear(product, epilogue, self.gated, self.add_norm)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, size = x.shape
        out = torch.empty(rows, size)
        self._rms_norm(4 * x.numel(), rows, floats_at(x), floats_at(weight), floats_at(out), size, eps)
        return out

    def add_norm(self, stream: Tensor | None, update: Tensor, norm: AddNorm) -> tuple[Tensor, Tensor]:
        if stream is None or norm.post is None:
            return reference.add_norm(stream, update, norm, self.rms_norm)
        rows, size = update.shape
        total = torch.empty(rows, size)
        out = total if norm.pre is None else torch.empty(rows, size)
        following = None if norm.pre is None else floats_at(norm.pre)
        addresses = floats_at(stream), floats_at(update), floats_at(norm.post), following, floats_at(total), floats_at(out)
        self._add_rms_norm(8 * update.numel(), rows, *addresses, size, norm.eps, norm.scale)
        return total, out

    def norm_rotate_store(
        self, qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, slots: KVSlots | None, values_are_keys: bool = False
    ) -> Tensor:
        if slots is not None and values_are_keys:
            qkv = reference.keys_as_values(qkv, slots.key.shape[2] * weight.shape[1])
        tokens, num_normed, head_dim = qkv.shape[0], *weight.shape
        num_kv_heads, block_size, block_stride = 0, 1, 0
        key = value = slot_mapping = None
        if slots is not None:
            _, block_size, num_kv_heads, _ = slots.key.shape
            block_stride = slots.key.stride(0)
            key, value, slot_mapping = cache_at(slots.key), cache_at(slots.value), slots.slot_mapping.data_ptr()
        num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
        q = torch.empty(tokens, num_heads, head_dim)
        addresses = floats_at(qkv), floats_at(weight), floats_at(cos), floats_at(sin), floats_at(q), key, value, slot_mapping
        sizes = num_heads, num_kv_heads, num_normed, head_dim, block_size, block_stride
        self._norm_rotate_store(8 * qkv.numel(), tokens, *addresses, *sizes, eps)
        return q

    def bind_attention(
        self, block_tables: Tensor, rows: StepRows, window: int | None, block_size: int, block_mass: Tensor | None = None
    ) -> Attention:
        tables = rows.tables(block_tables, block_size)
        attention = CpuAttention(self._decode_attention, self._chunk_attention, tables, rows, window, block_size)
        return attention if block_mass is None else MassAttention(attention, block_tables, rows, window, block_size, block_mass)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, size)
        self._gated[activation](24 * out.numel(), rows, floats_at(gate_up), floats_at(out), size)
        return out


class CpuAttention:
    """`reference.paged_attention` for the rows of one step: the leading rows of one token by one kernel, the others by another.

    attend: None where there is no matrix unit; then, and for heads that it does not serve, the others are left to the reference.
    """

    def __init__(
        self,
        decode: CompiledKernel,
        attend: ChunkAttention | None,
        block_tables: Tensor,
        rows: StepRows,
        window: int | None,
        block_size: int,
    ) -> None:
        self._num_single = single = rows.num_single
        self._kernel, self._attend = decode, attend
        self._tables, self._rows, self._seq_lens = block_tables.contiguous(), rows, rows.seq_lens
        self._window, self._block_size = window or _NO_WINDOW, block_size
        self._num_keys = sum(min(length, self._window) for length in rows.lengths[:single])

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(q)
        if self._num_single:
            self._decode(q, key, value, out, scale)
        if self._num_single == len(self._rows.lengths):
            return out
        if self._attend is None or not self._attend.serves(q.shape[2]):
            out[self._num_single :] = self._reference(q[self._num_single :], key, value, scale)
            return out
        for row, (start, stop) in enumerate(pairwise(self._rows.starts)):
            if row >= self._num_single:
                num_before = self._rows.lengths[row] - (stop - start)
                self._attend(q[start:stop], key, value, out[start:stop], self._tables[row], num_before, self._window, scale)
        return out

    @cached_property
    def _reference(self) -> PagedAttention:
        single, rows = self._num_single, self._rows
        starts, window = [start - single for start in rows.starts[single:]], None if self._window == _NO_WINDOW else self._window
        return PagedAttention(self._tables[single:], starts, rows.lengths[single:], window, self._block_size)

    def _decode(self, q: Tensor, key: Tensor, value: Tensor, out: Tensor, scale: float) -> None:
        num_heads, head_dim = q.shape[1:]
        _, block_size, num_kv_heads, _ = key.shape
        group, work = num_heads // num_kv_heads, 2 * self._num_keys * num_heads * head_dim
        # Heads that share a KV head read it once, together, unless that leaves threads without work.
        item_heads = group if self._num_single * num_kv_heads >= num_threads(work) and group <= MAX_ITEM_HEADS else 1
        addresses = floats_at(q), cache_at(key), cache_at(value), self._tables.data_ptr(), self._seq_lens.data_ptr(), floats_at(out)
        sizes = num_heads, num_kv_heads, head_dim, item_heads, block_size, key.stride(0), self._tables.shape[1], self._window
        self._kernel(work, self._num_single * num_heads // item_heads, *addresses, *sizes, scale)
