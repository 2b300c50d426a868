"""Linear layers with bfloat16 weights on CPUs without matrix units.

torch's bfloat16 matmul widens the weights again for every row on plain AVX2, so eight rows cost eight times one, and with AVX512-BF16
it still stops at half the memory bandwidth for a few rows; only AMX is better served by it. Here each weight is stored once, as panels,
and multiplied by one small kernel, generated as LLVM IR and compiled when the server starts (llvmlite; no C compiler). It reads every
weight from memory once a call, widens it in registers, accumulates in float32 and runs on torch's own OpenMP threads: a register-tiled
GEMM after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.

A panel is 16 output features for all of K; its word (k, lane) holds feature `lane` in the low and feature `8 + lane` in the high half,
so one load feeds two vectors with a shift and a mask. Lanes are outputs and k runs in order, hence no reduction: a row's result is the
same bits for any batch size, neighbours or thread count. `StockLinear`, used everywhere else, promises no such thing.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from inference_server.kernels.cpu_jit import CompiledKernel, KernelSource
from inference_server.kernels.ops import Linear
from inference_server.kernels.reference import StockLinear

LANES = 8  # float32 lanes of a 256-bit register
PANEL = 2 * LANES  # output features of a panel
BLOCK_PANELS = 2  # panels handed to a thread at a time
BLOCK = BLOCK_PANELS * PANEL
MAX_ROWS = 6  # 6 rows x 2 vectors of accumulators, and the operands, fill the 16 vector registers
PREFETCH_BYTES = 4096  # how far ahead of its use a weight is requested


class PackedLinear:
    """A bfloat16 weight in panels. Holds the only copy that is needed: `rows` reads the panels too."""

    def __init__(self, weight: Tensor, kernel: CompiledKernel) -> None:
        self._kernel = kernel
        self._num_features, self._k = weight.shape
        padded = functional.pad(weight, (0, 0, 0, -self._num_features % BLOCK))
        # [P, half, lane, K] -> [P, K, lane, half]
        self._panels = padded.reshape(-1, 2, LANES, self._k).permute(0, 3, 2, 1).contiguous()

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self._k:
            raise ValueError(f"expected [M, {self._k}], got {list(x.shape)}")
        y = torch.empty(x.shape[0], self._panels.shape[0] * PANEL)
        if rows := x.shape[0]:
            x32 = x.float().contiguous()
            addresses = self._panels.data_ptr(), x32.data_ptr(), y.data_ptr()
            self._kernel(y.numel() * self._k, y.shape[1] // BLOCK, *addresses, self._k, rows, y.shape[1])
        if y.shape[1] != self._num_features:
            y = y[:, : self._num_features].contiguous()
        dtype = out_dtype or x.dtype
        return y if dtype is torch.float32 else y.to(dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return self._panels[ids // PANEL, :, ids % LANES, ids % PANEL // LANES]


def pack_linear(weight: Tensor, kernel: CompiledKernel | None) -> Linear:
    """Returns the linear layer for `weight` `[N, K]`: packed for a bfloat16 weight where there is a kernel, else torch's own."""
    if kernel is None or weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
        return StockLinear(weight)
    return PackedLinear(weight, kernel)


def panel_kernel() -> KernelSource | None:
    """The kernel that multiplies by panels, or None where torch's own matmul is better or it would be slow.

    It needs AVX2 with FMA, and llvmlite to ask for them; a CPU with AMX is left to torch.
    An item is a block of outputs. Arguments: panels `[P, K, 8, 2]` bfloat16, x `[M, K]` and y `[M, 16 P]` float32, K, M > 0, 16 P.
    """
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    if torch.cpu._is_amx_tile_supported() or not (features.get("avx2") and features.get("fma")):
        return None
    return KernelSource("panel_linear", ("ptr", "ptr", "ptr", "i64", "i64", "i64"), "\n".join(_module_ir()))


def _module_ir() -> Iterator[str]:
    yield "declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)"
    yield "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    yield "declare i64 @llvm.smin.i64(i64, i64)"
    for rows in range(1, MAX_ROWS + 1):
        yield from _tile_ir(rows)
    yield from _item_ir()


def _item_ir() -> Iterator[str]:
    """Walks the rows of x in tiles."""
    yield f"""define void @panel_linear.item(i64 %block, ptr %w, ptr %x, ptr %y, i64 %k, i64 %m, i64 %n) {{
start:
  %block_words = mul i64 %k, {BLOCK_PANELS * LANES}
  %w.offset = mul i64 %block, %block_words
  %w.block = getelementptr i32, ptr %w, i64 %w.offset
  %y.offset = mul i64 %block, {BLOCK}
  %y.block = getelementptr float, ptr %y, i64 %y.offset
  br label %tile
tile:
  %row = phi i64 [0, %start], [%row.next, %tile.end]
  %left = sub i64 %m, %row
  %rows = call i64 @llvm.smin.i64(i64 %left, i64 {MAX_ROWS})
  %x.offset = mul i64 %row, %k
  %x.tile = getelementptr float, ptr %x, i64 %x.offset
  %y.row = mul i64 %row, %n
  %y.tile = getelementptr float, ptr %y.block, i64 %y.row
  switch i64 %rows, label %end [{" ".join(f"i64 {r}, label %rows{r}" for r in range(1, MAX_ROWS + 1))}]"""
    for rows in range(1, MAX_ROWS + 1):
        yield f"rows{rows}:\n  call void @tile{rows}(ptr %w.block, ptr %x.tile, ptr %y.tile, i64 %k, i64 %n)\n  br label %tile.end"
    yield """
tile.end:
  %row.next = add i64 %row, %rows
  %again = icmp slt i64 %row.next, %m
  br i1 %again, label %tile, label %end
end:
  ret void
}"""


def _tile_ir(rows: int) -> Iterator[str]:
    """A tile is `rows` rows of x by one block; two rows or one take its panels together, to have enough independent sums in flight."""
    together = BLOCK_PANELS if rows <= 2 else 1
    yield f"define internal void @tile{rows}(ptr noalias %w, ptr noalias %x, ptr noalias %y, i64 %k, i64 %n) {{\nentry:"
    yield f"  %panel_words = mul i64 %k, {LANES}"
    for r in range(rows):
        yield f"  %x{r}.offset = mul i64 %k, {r}\n  %x{r} = getelementptr float, ptr %x, i64 %x{r}.offset"
        yield f"  %y{r}.offset = mul i64 %n, {r}\n  %y{r} = getelementptr float, ptr %y, i64 %y{r}.offset"
    for p in range(BLOCK_PANELS):
        yield f"  %w{p}.offset = mul i64 %panel_words, {p}\n  %w{p} = getelementptr i32, ptr %w, i64 %w{p}.offset"
    previous = "entry"
    for first in range(0, BLOCK_PANELS, together):
        yield f"  br label %loop{first}"
        yield from _sum_ir(f"loop{first}", previous, rows, range(first, first + together))
        previous = f"loop{first}.end"
    yield "  ret void\n}"


def _sum_ir(loop: str, previous: str, rows: int, panels: range) -> Iterator[str]:
    """The inner loop over k, and the stores of its sums."""
    sums = [(r, p, half) for r in range(rows) for p in panels for half in range(2)]
    yield f"{loop}:\n  %{loop}.i = phi i64 [0, %{previous}], [%{loop}.next, %{loop}]"
    for r, p, half in sums:
        yield f"  %old{r}.{p}.{half} = phi <8 x float> [zeroinitializer, %{previous}], [%sum{r}.{p}.{half}, %{loop}]"
    yield f"  %{loop}.word = mul i64 %{loop}.i, {LANES}"
    for p in panels:
        yield f"""
  %w{p}.at = getelementptr i32, ptr %w{p}, i64 %{loop}.word
  %w{p}.ahead = getelementptr i8, ptr %w{p}.at, i64 {PREFETCH_BYTES}
  call void @llvm.prefetch.p0(ptr %w{p}.ahead, i32 0, i32 3, i32 1)
  %pair{p} = load <8 x i32>, ptr %w{p}.at, align 32
  %low{p} = shl <8 x i32> %pair{p}, splat (i32 16)
  %high{p} = and <8 x i32> %pair{p}, splat (i32 -65536)
  %wide{p}.0 = bitcast <8 x i32> %low{p} to <8 x float>
  %wide{p}.1 = bitcast <8 x i32> %high{p} to <8 x float>"""
    for r in range(rows):
        yield f"""
  %{loop}.x{r}.at = getelementptr float, ptr %x{r}, i64 %{loop}.i
  %{loop}.x{r} = load float, ptr %{loop}.x{r}.at
  %{loop}.lane{r} = insertelement <8 x float> poison, float %{loop}.x{r}, i32 0
  %{loop}.all{r} = shufflevector <8 x float> %{loop}.lane{r}, <8 x float> poison, <8 x i32> zeroinitializer"""
        for p in panels:
            for half in range(2):
                operands = f"<8 x float> %wide{p}.{half}, <8 x float> %{loop}.all{r}, <8 x float> %old{r}.{p}.{half}"
                yield f"  %sum{r}.{p}.{half} = call <8 x float> @llvm.fma.v8f32({operands})"
    yield f"""
  %{loop}.next = add i64 %{loop}.i, 1
  %{loop}.done = icmp eq i64 %{loop}.next, %k
  br i1 %{loop}.done, label %{loop}.end, label %{loop}
{loop}.end:"""
    for r, p, half in sums:
        yield f"  %y{r}.{p}.{half} = getelementptr float, ptr %y{r}, i64 {p * PANEL + half * LANES}"
        yield f"  store <8 x float> %sum{r}.{p}.{half}, ptr %y{r}.{p}.{half}, align 4"
