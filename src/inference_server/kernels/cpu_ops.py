"""`CpuOps`: the operations of a forward on compiled CPU kernels, for float32 activations over a bfloat16 cache.

A call costs a few microseconds, where the same in PyTorch is ten small operations of one or two each. Every result is the same bits
for any batch, chunking and thread count.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from inference_server.kernels.cpu_attention import MAX_ITEM_HEADS, paged_attention
from inference_server.kernels.cpu_gated import gated_gelu_tanh, gated_silu
from inference_server.kernels.cpu_jit import CompiledKernel, can_compile, compile_kernels, num_threads, trace
from inference_server.kernels.cpu_linear import pack_linear, panel_kernel
from inference_server.kernels.cpu_norm import add_rms_norm, rms_norm
from inference_server.kernels.cpu_rotary import norm_rotate_store
from inference_server.kernels.ops import Activation, KVSlots, Linear

_NO_WINDOW = 1 << 62


def compile_cpu_ops() -> "CpuOps | None":
    """Compiles the kernels for this machine (about half a second), or returns None where that cannot be done."""
    if not can_compile():
        return None
    kernels = (rms_norm, add_rms_norm, norm_rotate_store, paged_attention, gated_gelu_tanh, gated_silu)
    panel = panel_kernel()
    return CpuOps(compile_kernels([*(trace(kernel) for kernel in kernels), *([panel] if panel else [])]))


class CpuOps:
    """An `Ops` (see there and `kernels.reference`)."""

    def __init__(self, kernels: Mapping[str, CompiledKernel]) -> None:
        self._rms_norm = kernels["rms_norm"]
        self._add_rms_norm = kernels["add_rms_norm"]
        self._norm_rotate_store = kernels["norm_rotate_store"]
        self._paged_attention = kernels["paged_attention"]
        self._gated = {activation: kernels[f"gated_{activation}"] for activation in Activation}
        self._panel_linear = kernels.get("panel_linear")

    def linear(self, weight: Tensor) -> Linear:
        return pack_linear(weight, self._panel_linear)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, size = x.shape
        out = torch.empty(rows, size)
        self._rms_norm(4 * x.numel(), rows, _floats(x), _floats(weight), _floats(out), size, eps)
        return out

    def add_rms_norm(
        self, residual: Tensor, x: Tensor, weight: Tensor, next_weight: Tensor | None, eps: float, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        rows, size = x.shape
        total = torch.empty(rows, size)
        out = total if next_weight is None else torch.empty(rows, size)
        following = None if next_weight is None else _floats(next_weight)
        addresses = _floats(residual), _floats(x), _floats(weight), following, _floats(total), _floats(out)
        self._add_rms_norm(8 * x.numel(), rows, *addresses, size, eps, scale)
        return total, out

    def norm_rotate_store(self, qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, slots: KVSlots | None) -> Tensor:
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
        self, block_tables: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, window: int | None, block_size: int
    ) -> "CpuAttention":
        return CpuAttention(self._paged_attention, block_tables, cu_seqlens_q, seq_lens, window)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, size)
        self._gated[activation](24 * out.numel(), rows, _floats(gate_up), _floats(out), size)
        return out


class CpuAttention:
    """`reference.paged_attention` for the rows of one step. Where tokens lie in their sequences is worked out once, for all layers."""

    def __init__(self, kernel: CompiledKernel, block_tables: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, window: int | None) -> None:
        starts, lengths = cu_seqlens_q.numpy(), seq_lens.numpy()  # numpy: a fifth of torch's time for so few numbers
        counts = starts[1:] - starts[:-1]
        rows = np.arange(len(counts)).repeat(counts)
        self._kernel = kernel
        self._tables = block_tables.contiguous()
        self._rows = torch.from_numpy(rows)  # [tokens]
        positions = np.arange(len(rows)) + (lengths - starts[1:])[rows]
        self._positions = torch.from_numpy(positions)  # [tokens]
        self._window = window or _NO_WINDOW
        self._num_keys = int(np.minimum(positions + 1, self._window).sum())  # read by one query head of every token

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        tokens, num_heads, head_dim = q.shape
        _, block_size, num_kv_heads, _ = key.shape
        out = torch.empty(tokens, num_heads, head_dim)
        group, work = num_heads // num_kv_heads, 2 * self._num_keys * num_heads * head_dim
        # Heads that share a KV head read it once, together, unless that leaves threads without work.
        item_heads = group if tokens * num_kv_heads >= num_threads(work) and group <= MAX_ITEM_HEADS else 1
        addresses = _floats(q), _cache(key), _cache(value), self._tables.data_ptr(), self._rows.data_ptr(), self._positions.data_ptr()
        sizes = num_heads, num_kv_heads, head_dim, item_heads, block_size, key.stride(0), self._tables.shape[1], self._window
        self._kernel(work, tokens * num_heads // item_heads, *addresses, _floats(out), *sizes, scale)
        return out


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
