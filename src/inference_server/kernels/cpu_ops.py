"""`CpuOps`: the operations of a forward on compiled CPU kernels, for float32 activations over a bfloat16 cache.

A call costs a few microseconds, where the same in PyTorch is ten small operations of one or two each. A decoded token's result is the
same bits for any batch and thread count.
"""

from collections.abc import Mapping
from functools import cache, cached_property

import torch
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.composed import ComposedLinear
from inference_server.kernels.cpu_attention import MAX_ITEM_HEADS, decode_attention
from inference_server.kernels.cpu_gated import gated_gelu_tanh, gated_silu
from inference_server.kernels.cpu_int8 import Int8Linear, int8_kernel, quantize_kernel
from inference_server.kernels.cpu_jit import CompiledKernel, can_compile, compile_kernels, num_threads, trace
from inference_server.kernels.cpu_linear import PackedLinear, panel_kernel
from inference_server.kernels.cpu_norm import add_rms_norm, rms_norm
from inference_server.kernels.cpu_rotary import norm_rotate_store
from inference_server.kernels.cpu_vectors import VectorUnit, cpu_features, vector_unit
from inference_server.kernels.ops import PLAIN, Activation, AddNorm, Attention, Epilogue, FusedLinear, KVSlots, Linear
from inference_server.kernels.quantize import QuantizedWeight
from inference_server.kernels.reference import MassAttention, PagedAttention
from inference_server.kernels.step_rows import StepRows

_NO_WINDOW = 1 << 62


@cache
def compile_cpu_ops() -> "CpuOps | None":
    """Compiles the kernels for this machine (about half a second), once a process, or returns None where that cannot be done."""
    if not can_compile():
        return None
    kernels = (rms_norm, add_rms_norm, norm_rotate_store, decode_attention, gated_gelu_tanh, gated_silu)
    return CpuOps(compile_kernels([trace(kernel) for kernel in kernels]), vector_unit(cpu_features()))


class CpuOps:
    """An `Ops` (see there and `kernels.reference`). unit: what linear layers are compiled for, when the first is made; None: torch's."""

    experts = staticmethod(reference.experts)
    place_tokens = staticmethod(reference.place_tokens)
    rotary_angles = staticmethod(reference.rotary_angles)
    route = staticmethod(reference.route)

    def __init__(self, kernels: Mapping[str, CompiledKernel], unit: VectorUnit | None) -> None:
        self._rms_norm = kernels["rms_norm"]
        self._add_rms_norm = kernels["add_rms_norm"]
        self._norm_rotate_store = kernels["norm_rotate_store"]
        self._decode_attention = kernels["decode_attention"]
        self._gated = {activation: kernels[f"gated_{activation}"] for activation in Activation}
        self._linears = CpuLinears(unit) if unit else None

    def linear(self, weight: Tensor | QuantizedWeight, epilogue: Epilogue = PLAIN) -> FusedLinear:
        product = self._linears(weight) if self._linears else reference.product(weight)
        return ComposedLinear(product, epilogue, self.gated, self.add_norm)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, size = x.shape
        out = torch.empty(rows, size)
        self._rms_norm(4 * x.numel(), rows, _floats(x), _floats(weight), _floats(out), size, eps)
        return out

    def add_norm(self, stream: Tensor | None, update: Tensor, norm: AddNorm) -> tuple[Tensor, Tensor]:
        if stream is None or norm.post is None:
            return reference.add_norm(stream, update, norm, self.rms_norm)
        rows, size = update.shape
        total = torch.empty(rows, size)
        out = total if norm.pre is None else torch.empty(rows, size)
        following = None if norm.pre is None else _floats(norm.pre)
        addresses = _floats(stream), _floats(update), _floats(norm.post), following, _floats(total), _floats(out)
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
            key, value, slot_mapping = _cache(slots.key), _cache(slots.value), slots.slot_mapping.data_ptr()
        num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
        q = torch.empty(tokens, num_heads, head_dim)
        addresses = _floats(qkv), _floats(weight), _floats(cos), _floats(sin), _floats(q), key, value, slot_mapping
        sizes = num_heads, num_kv_heads, num_normed, head_dim, block_size, block_stride
        self._norm_rotate_store(8 * qkv.numel(), tokens, *addresses, *sizes, eps)
        return q

    def bind_attention(
        self, block_tables: Tensor, rows: StepRows, window: int | None, block_size: int, block_mass: Tensor | None = None
    ) -> Attention:
        attention = CpuAttention(self._decode_attention, rows.tables(block_tables, block_size), rows, window, block_size)
        return attention if block_mass is None else MassAttention(attention, block_tables, rows, window, block_size, block_mass)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, size)
        self._gated[activation](24 * out.numel(), rows, _floats(gate_up), _floats(out), size)
        return out


class CpuLinears:
    """Makes linear layers, by kernels that are compiled for `unit` when the first layer of a kind asks for them."""

    def __init__(self, unit: VectorUnit) -> None:
        self._unit = unit

    def __call__(self, weight: Tensor | QuantizedWeight) -> Linear:
        if isinstance(weight, QuantizedWeight):
            return Int8Linear(weight, *self._int8_kernels, self._unit)
        return PackedLinear(weight, self._panel_kernel, self._unit) if weight.dtype is torch.bfloat16 else reference.product(weight)

    @cached_property
    def _panel_kernel(self) -> CompiledKernel:
        return compile_kernels([panel_kernel(self._unit)])["panel_linear"]

    @cached_property
    def _int8_kernels(self) -> tuple[CompiledKernel, CompiledKernel]:
        kernels = compile_kernels([quantize_kernel(self._unit), int8_kernel(self._unit)])
        return kernels["quantize_rows"], kernels["int8_linear"]


class CpuAttention:
    """`reference.paged_attention` for the rows of one step: the leading rows of one token by the kernel, the others by the reference."""

    def __init__(self, kernel: CompiledKernel, block_tables: Tensor, rows: StepRows, window: int | None, block_size: int) -> None:
        self._num_single = single = rows.num_single
        self._kernel = kernel
        self._tables, self._seq_lens = block_tables.contiguous(), rows.seq_lens
        self._window = window or _NO_WINDOW
        self._num_keys = sum(min(length, self._window) for length in rows.lengths[:single])
        self._chunks = None
        if single < len(rows.lengths):
            starts = [start - single for start in rows.starts[single:]]
            self._chunks = PagedAttention(block_tables[single:], starts, rows.lengths[single:], window, block_size)

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(q)
        if self._num_single:
            self._decode(q, key, value, out, scale)
        if self._chunks is not None:
            out[self._num_single :] = self._chunks(q[self._num_single :], key, value, scale)
        return out

    def _decode(self, q: Tensor, key: Tensor, value: Tensor, out: Tensor, scale: float) -> None:
        num_heads, head_dim = q.shape[1:]
        _, block_size, num_kv_heads, _ = key.shape
        group, work = num_heads // num_kv_heads, 2 * self._num_keys * num_heads * head_dim
        # Heads that share a KV head read it once, together, unless that leaves threads without work.
        item_heads = group if self._num_single * num_kv_heads >= num_threads(work) and group <= MAX_ITEM_HEADS else 1
        addresses = _floats(q), _cache(key), _cache(value), self._tables.data_ptr(), self._seq_lens.data_ptr(), _floats(out)
        sizes = num_heads, num_kv_heads, head_dim, item_heads, block_size, key.stride(0), self._tables.shape[1], self._window
        self._kernel(work, self._num_single * num_heads // item_heads, *addresses, *sizes, scale)


def _floats(x: Tensor) -> int:
    """The address of a float32 tensor."""
    if x.dtype is not torch.float32 or not x.is_contiguous():
        raise TypeError(f"expected contiguous float32, got {x.dtype} of strides {x.stride()}")
    return x.data_ptr()


def _cache(x: Tensor) -> int:
    """The address of a layer's keys or values [num_blocks, block_size, num_kv_heads, head_dim]."""
    if x.dtype is not torch.bfloat16:
        raise TypeError(f"expected bfloat16, got {x.dtype}")
    return x.data_ptr()
