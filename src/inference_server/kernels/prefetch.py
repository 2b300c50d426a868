"""Asking for memory to be brought to L2, for Triton kernels to call while the kernel before still runs. On NVIDIA cards."""

import triton
import triton.language as tl


@triton.jit
def prefetch(pointers):
    """A line of 128 bytes for each pointer. It need not have been written yet: what is written later is what a load will see."""
    addresses = pointers.to(tl.int64, bitcast=True)
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [addresses], dtype=tl.int32, is_pure=False, pack=1)
