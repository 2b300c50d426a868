"""Compiles small CPU kernels when the server starts: arithmetic written in Python, machine code by LLVM (llvmlite; no C compiler).

A kernel is a Python function that computes one item, such as one row, on the symbols of `code`, or LLVM assembly that does the same.
What comes back is a function that shares any number of items among torch's own OpenMP threads, or runs a few where it is called.
Every item is computed by the same instructions wherever it runs and whatever runs beside it, so its result is the same bits for any
batch, neighbours and thread count.
"""

import ctypes
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inference_server.kernels.cpu.code import Array, Code, Float, Int

GRAIN = 1 << 17  # multiplications, 10 to 20 microseconds


@dataclass(frozen=True, slots=True)
class KernelSource:
    """LLVM assembly that defines `void @<name>.item(i64, <types>)`; types: "ptr", "i64" or "float"."""

    name: str
    types: tuple[str, ...]
    assembly: str


class CompiledKernel:
    """Call it with the number of items and the kernel's arguments; tensors as addresses, unchecked.

    work: about how many multiplications that is. A thread joins for each GRAIN of them: for less, waking it costs more than it saves, and
    where cores are shared with other processes, waiting for it costs far more.
    """

    def __init__(self, engine: Any, source: KernelSource) -> None:
        self._engine = engine  # owns the machine code
        ctype = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "float": ctypes.c_float}
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, *(ctype[t] for t in source.types))
        self._function = prototype(engine.get_function_address(source.name))

    def __call__(self, work: int, items: int, *arguments: int | float | None) -> None:
        self._function(num_threads(work), items, *arguments)


def num_threads(work: int) -> int:
    """How many threads share so much work."""
    return 1 if work < 2 * GRAIN else min(work // GRAIN, torch.get_num_threads())


def floats_at(x: torch.Tensor) -> int:
    """The address of a float32 tensor."""
    if x.dtype is not torch.float32 or not x.is_contiguous():
        raise TypeError(f"expected contiguous float32, got {x.dtype} of strides {x.stride()}")
    return x.data_ptr()


def cache_at(x: torch.Tensor) -> int:
    """The address of a layer's keys or values [num_blocks, block_size, num_kv_heads, head_dim]."""
    if x.dtype is not torch.bfloat16:
        raise TypeError(f"expected bfloat16, got {x.dtype}")
    return x.data_ptr()


def can_compile() -> bool:
    """Whether there is what it takes: Linux (an OpenMP runtime with the GNU entry point, loaded by torch) and llvmlite."""
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return False
    try:
        import llvmlite.binding  # noqa: F401
    except ImportError:
        return False
    return True


def compile_kernels(sources: Sequence[KernelSource]) -> dict[str, CompiledKernel]:
    """The kernels by name, compiled for this machine in a few tenths of a second. Only where `can_compile`."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        features["prefer-256-bit"] = False  # LLVM's choice for CPUs that slow down when their wide registers are used
    cpu, flags = llvm.get_host_cpu_name(), features.flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=flags, opt=3)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for source in sources:
        module = llvm.parse_assembly("\n".join((source.assembly, *_parallel_assembly(source))))
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        engine.add_module(module)
    engine.finalize_object()
    return {source.name: CompiledKernel(engine, source) for source in sources}


def _parallel_assembly(source: KernelSource) -> Iterator[str]:
    """`void @<name>(i64 threads, i64 items, <types>)`: each thread takes the next item until none is left."""
    name, numbered = source.name, list(enumerate(source.types))
    signature = "".join(f", {t} %a{i}" for i, t in numbered)
    yield f"%task = type {{ {', '.join(('i64', 'i64', *source.types))} }}\ndeclare void @GOMP_parallel(ptr, ptr, i32, i32)"
    yield f"define void @{name}(i64 %threads, i64 %items{signature}) {{\n  %task = alloca %task\n  store i64 0, ptr %task"
    for i, (t, value) in enumerate([("i64", "%items"), *((t, f"%a{i}") for i, t in numbered)], start=1):
        yield f"  %at{i} = getelementptr %task, ptr %task, i32 0, i32 {i}\n  store {t} {value}, ptr %at{i}"
    yield f"""  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %here, label %team
here:
  call void @{name}.worker(ptr %task)
  ret void
team:
  %count = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @{name}.worker, ptr %task, i32 %count, i32 0)
  ret void
}}
define void @{name}.worker(ptr %task) {{
  %items.at = getelementptr %task, ptr %task, i32 0, i32 1
  %items = load i64, ptr %items.at"""
    for i, t in numbered:
        yield f"  %at{i} = getelementptr %task, ptr %task, i32 0, i32 {i + 2}\n  %a{i} = load {t}, ptr %at{i}"
    yield f"""  br label %take
take:
  %item = atomicrmw add ptr %task, i64 1 monotonic
  %valid = icmp slt i64 %item, %items
  br i1 %valid, label %run, label %exit
run:
  call void @{name}.item(i64 %item{signature}) #0
  br label %take
exit:
  ret void
}}
attributes #0 = {{ noinline }}"""


def trace(kernel: Callable[..., None]) -> KernelSource:
    """Runs the kernel once on symbols. It takes a `Code`, the item as an `Int`, then arguments annotated with the types below."""
    from llvmlite import ir

    parameters = list(inspect.signature(kernel, eval_str=True).parameters.values())[2:]
    classes: list[type[Int] | type[Float] | type[Array]] = [p.annotation for p in parameters]
    types = tuple(c.llvm_type for c in classes)
    llvm = {"ptr": ir.PointerType(), "i64": ir.IntType(64), "float": ir.FloatType()}
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [llvm["i64"], *(llvm[t] for t in types)]), f"{kernel.__name__}.item")
    code = Code(ir.IRBuilder(function.append_basic_block()))
    for argument, t in zip(function.args[1:], types, strict=True):
        if t == "ptr":
            argument.add_attribute("noalias")
    kernel(code, Int(code, function.args[0]), *(c(code, a) for c, a in zip(classes, function.args[1:], strict=True)))
    code.builder.ret_void()
    return KernelSource(kernel.__name__, types, str(module))
