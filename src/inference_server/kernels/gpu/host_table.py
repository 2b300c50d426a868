"""A table in the host's memory whose rows the GPU fetches itself, over the bus.

The ids of a decode step are on the device, under overlap before the host has seen them: a gather by the host would have to wait for
them, and could not be part of a CUDA graph. Pinned memory has an address that kernels can read, so the gather is a kernel like any
other. A row of Gemma 4 E2B's per-layer embeddings is 18 kB, which a step of a few hundred tokens fetches in a fraction of its time.
"""

import logging
import weakref

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024

logger = logging.getLogger(__name__)


class HostTable:
    """Lookup of rows by id, for ids on `device`. On a CPU the memory is not pinned, as there is nothing to pin it for."""

    def __init__(self, table: Tensor, device: torch.device) -> None:
        """table [rows, width], contiguous, in the host's memory. Raises RuntimeError if the system does not let it be pinned."""
        self._table = table
        if device.type == "cuda":
            _pin(table, self)
            logger.info("a table of %.2f GB stays in the host's memory", table.nbytes / 1e9)

    def __call__(self, ids: Tensor) -> Tensor:
        """ids int64 [tokens] to rows [tokens, width], on the device of the ids. An id outside the table is not noticed."""
        width = self._table.shape[1]
        out = torch.empty(len(ids), width, dtype=self._table.dtype, device=ids.device)
        if len(ids):
            _gather_kernel[(len(ids), triton.cdiv(width, _BLOCK))](self._table, ids, out, width, _BLOCK)
        return out


def _pin(table: Tensor, owner: HostTable) -> None:
    """Pin the memory where it is, until `owner` goes. torch's pinned allocator would round 4.7 GB up to 8."""
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(int(runtime.cudaHostRegister(table.data_ptr(), table.nbytes, 0)))
    weakref.finalize(owner, runtime.cudaHostUnregister, table.data_ptr())


@triton.jit
def _gather_kernel(table, ids, out, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + token)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(table + row * width + columns, mask=columns < width)
    tl.store(out + token * width + columns, values, mask=columns < width)
