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

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

LANES = 8  # float32 lanes of a 256-bit register
PANEL = 2 * LANES  # output features of a panel
BLOCK_PANELS = 2  # panels handed to a thread at a time
BLOCK = BLOCK_PANELS * PANEL
MAX_ROWS = 6  # 6 rows x 2 vectors of accumulators, and the operands, fill the 16 vector registers
PREFETCH_BYTES = 4096  # how far ahead of its use a weight is requested


class Linear(Protocol):
    """`y = x @ W.T` for a fixed weight `[N, K]`."""

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """Maps `x` `[M, K]` to `[M, N]` in `out_dtype`, by default that of `x`."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the weight rows `[T, K]` of `ids` `[T]`: the embedding lookup of a tied output head."""
        ...


@dataclass(frozen=True, slots=True)
class StockLinear:
    """torch's own linear layer; the weight is kept as it is."""

    weight: Tensor

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        return functional.linear(x.to(self.weight.dtype), self.weight).to(out_dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class PanelKernel:
    """The compiled kernel; one serves every weight."""

    def __init__(self, engine: Any, openmp: ctypes.CDLL) -> None:
        self._engine = engine  # owns the machine code
        self._worker = ctypes.c_void_p(engine.get_function_address("worker"))
        self._parallel = openmp.GOMP_parallel
        self._parallel.restype = None
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]

    def __call__(self, panels: Tensor, x: Tensor, y: Tensor) -> None:
        """Writes `x @ W.T` to `y`, unchecked: all contiguous, M > 0, P even.

        `panels` is `[P, K, 8, 2]` bfloat16, `x` `[M, K]` and `y` `[M, 16 P]` float32.
        """
        num_panels, k = panels.shape[:2]
        task = (ctypes.c_int64 * len(TASK))(
            0, num_panels // BLOCK_PANELS, panels.data_ptr(), x.data_ptr(), y.data_ptr(), k, x.shape[0], y.shape[1]
        )
        self._parallel(self._worker, ctypes.addressof(task), torch.get_num_threads(), 0)


class PackedLinear:
    """A bfloat16 weight in panels. Holds the only copy that is needed: `rows` reads the panels too."""

    def __init__(self, weight: Tensor, kernel: PanelKernel) -> None:
        self._kernel = kernel
        self._num_features, self._k = weight.shape
        padded = functional.pad(weight, (0, 0, 0, -self._num_features % BLOCK))
        # [P, half, lane, K] -> [P, K, lane, half]
        self._panels = padded.reshape(-1, 2, LANES, self._k).permute(0, 3, 2, 1).contiguous()

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self._k:
            raise ValueError(f"expected [M, {self._k}], got {list(x.shape)}")
        y = torch.empty(x.shape[0], self._panels.shape[0] * PANEL)
        if x.shape[0]:
            self._kernel(self._panels, x.float().contiguous(), y)
        if y.shape[1] != self._num_features:
            y = y[:, : self._num_features]
        dtype = out_dtype or x.dtype
        return y if dtype is torch.float32 else y.to(dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return self._panels[ids // PANEL, :, ids % LANES, ids % PANEL // LANES]


def pack_linear(weight: Tensor, kernel: PanelKernel | None) -> Linear:
    """Returns the linear layer for `weight` `[N, K]`: packed for a bfloat16 weight where there is a kernel, else torch's own."""
    if kernel is None or weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
        return StockLinear(weight)
    return PackedLinear(weight, kernel)


def compile_panel_kernel() -> PanelKernel | None:
    """Compiles the kernel for this machine (about 0.1 s), or returns None where torch's own matmul is better or the kernel cannot run.

    It needs Linux (an OpenMP runtime with the GNU entry point), AVX2 with FMA, and llvmlite; a CPU with AMX is left to torch.
    """
    if sys.platform != "linux" or torch.cpu._is_amx_tile_supported():
        return None
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return None
    openmp = ctypes.CDLL(None)  # torch has loaded its OpenMP runtime with global symbols
    features = llvm.get_host_cpu_features()
    if not (features.get("avx2") and features.get("fma") and hasattr(openmp, "GOMP_parallel")):
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3)
    module = llvm.parse_assembly("\n".join(_module_ir()))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return PanelKernel(engine, openmp)


TASK = ("next_block", "num_blocks", "w", "x", "y", "k", "m", "n")  # the worker's argument: eight 64-bit fields


def _module_ir() -> Iterator[str]:
    yield "declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)"
    yield "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    yield "declare i64 @llvm.smin.i64(i64, i64)"
    for rows in range(1, MAX_ROWS + 1):
        yield from _tile_ir(rows)
    yield from _worker_ir()


def _worker_ir() -> Iterator[str]:
    """Each thread takes the next block of outputs until none is left, and walks the rows of x in tiles."""
    yield "define void @worker(ptr %task) {\nentry:"
    for index, field in enumerate(TASK[1:], start=1):
        yield f"  %{field}.at = getelementptr i64, ptr %task, i64 {index}"
        yield f"  %{field} = load {'ptr' if field in ('w', 'x', 'y') else 'i64'}, ptr %{field}.at"
    yield f"""
  %block_words = mul i64 %k, {BLOCK_PANELS * LANES}
  br label %take
take:
  %block = atomicrmw add ptr %task, i64 1 monotonic
  %valid = icmp slt i64 %block, %num_blocks
  br i1 %valid, label %start, label %exit
exit:
  ret void
start:
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
  switch i64 %rows, label %exit [{" ".join(f"i64 {r}, label %rows{r}" for r in range(1, MAX_ROWS + 1))}]"""
    for rows in range(1, MAX_ROWS + 1):
        yield f"rows{rows}:\n  call void @tile{rows}(ptr %w.block, ptr %x.tile, ptr %y.tile, i64 %k, i64 %n)\n  br label %tile.end"
    yield """
tile.end:
  %row.next = add i64 %row, %rows
  %again = icmp slt i64 %row.next, %m
  br i1 %again, label %tile, label %take
}"""


def _tile_ir(rows: int) -> Iterator[str]:
    """A tile is `rows` rows of x by one block; few rows take its panels together, to have enough independent sums in flight."""
    together = BLOCK_PANELS if rows * BLOCK_PANELS <= MAX_ROWS else 1
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
