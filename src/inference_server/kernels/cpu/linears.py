"""Which linear layer multiplies by a weight on this CPU: int8 panels, bfloat16 tiles or panels, or torch's product."""

from functools import cached_property

import torch
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.cpu.int8 import Int8Linear, int8_kernel, quantize_kernel
from inference_server.kernels.cpu.jit import CompiledKernel, compile_kernels, trace
from inference_server.kernels.cpu.panel_linear import PackedLinear, panel_kernel
from inference_server.kernels.cpu.tile_linear import TileLinear, tile_linear
from inference_server.kernels.cpu.tiles import split_rows
from inference_server.kernels.cpu.vectors import VectorUnit
from inference_server.kernels.ops import Linear
from inference_server.kernels.quantize import QuantizedWeight


class CpuLinears:
    """Makes linear layers, by kernels that are compiled for `unit` when the first layer of a kind asks for them."""

    def __init__(self, unit: VectorUnit) -> None:
        self._unit = unit

    def __call__(self, weight: Tensor | QuantizedWeight) -> Linear:
        if isinstance(weight, QuantizedWeight):
            return Int8Linear(weight, *self._int8_kernels, self._unit)
        if weight.dtype is not torch.bfloat16:
            return reference.product(weight)
        return TileLinear(weight, *self._tile_kernels) if self._unit.tiles else PackedLinear(weight, self._panel_kernel, self._unit)

    @cached_property
    def _panel_kernel(self) -> CompiledKernel:
        return compile_kernels([panel_kernel(self._unit)])["panel_linear"]

    @cached_property
    def _tile_kernels(self) -> tuple[CompiledKernel, CompiledKernel]:
        kernels = compile_kernels([trace(split_rows), trace(tile_linear)])
        return kernels["split_rows"], kernels["tile_linear"]

    @cached_property
    def _int8_kernels(self) -> tuple[CompiledKernel, CompiledKernel]:
        kernels = compile_kernels([quantize_kernel(self._unit), int8_kernel(self._unit)])
        return kernels["quantize_rows"], kernels["int8_linear"]
