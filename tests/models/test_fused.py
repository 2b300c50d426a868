"""The functions that models give to `Ops.fused`: a compiler can follow each to its end, is asked twice for it, and changes no result."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from test_triton_models import CPU, SHORT_MODELS, load
from torch import Tensor
from torch.fx import GraphModule

from inference_server.core.errors import ModelLoadError
from inference_server.kernels.gpu.compiled import compiled
from inference_server.kernels.gpu.ops import TritonOps
from inference_server.kernels.select_ops import select_ops


@pytest.fixture(autouse=True)
def forgets_what_was_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Compiler:
    """A backend of torch.compile that counts the graphs that it is given, and runs them as they are."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: GraphModule, inputs: list[Tensor], **options: object) -> Callable[..., object]:
        self.count += 1
        return graph.forward


def test_one_compilation_serves_one_token_and_another_any_number() -> None:
    compiler, hf = Compiler(), SHORT_MODELS["gemma4-e2b"]()
    fused, plain = (load(hf, CPU, torch.bfloat16, TritonOps(torch.bfloat16, *fuse)) for fuse in ([partial(compiled, backend=compiler)], []))
    with torch.inference_mode():
        for count in (5, 1, 300, 2, 1, 64):
            ids = torch.arange(count) % 512
            assert fused.embed(ids).equal(plain.embed(ids))
            assert fused.per_layer.lookup(ids).equal(plain.per_layer.lookup(ids))
    assert compiler.count == 4  # two lookups


def test_only_cuda_has_what_is_to_be_compiled() -> None:
    with pytest.raises(ModelLoadError, match="CUSTOM_BACKEND_COMPILE needs CUDA and Triton"):
        select_ops(CPU, torch.bfloat16, torch_compile=True)
