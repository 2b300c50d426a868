"""Whole models on the CUDA operations: in fp32 in the interpreter, where they equal the reference to 1e-4; in bfloat16 on a GPU."""

import json

import pytest
import torch
from forward_driver import DictSource, logits_of
from tiny_models import MOE_GEMMA4, QWEN3_MOE, SMALL_GEMMA4, TINY, gemma4, qwen3_moe
from transformers import PreTrainedModel

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.kernels import reference
from inference_server.kernels.gpu import linear
from inference_server.kernels.gpu.launch import LaunchConfig, tuning
from inference_server.kernels.gpu.ops import TritonOps
from inference_server.kernels.ops import Ops
from inference_server.models.registry import Model, find_family
from inference_server.models.weights import Weights

CONFIG = LaunchConfig(rows=64, block_k=32, num_warps=4, num_stages=2)
SHORT = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}  # the interpreter takes a second a layer
SHORT_MODELS = {
    "gemma4-e2b": lambda: gemma4(**SMALL_GEMMA4 | SHORT | {"num_kv_shared_layers": 2}),
    "gemma4-26b-a4b": lambda: gemma4(**MOE_GEMMA4 | SHORT),
    "qwen3-moe": lambda: qwen3_moe(**QWEN3_MOE),
}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def load(hf: PreTrainedModel, device: torch.device, dtype: torch.dtype, ops: Ops) -> Model:
    config = {**json.loads(hf.config.to_json_string()), "architectures": [type(hf).__name__]}
    found = find_family(config)
    assert found is not None
    source = DictSource({name: tensor.clone() for name, tensor in hf.state_dict().items()})
    return found[1].model(found[1].config_from_dict(config), Weights(source, device, dtype, ops))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")
@pytest.mark.parametrize("name, tuned", [("gemma4-e2b", False), ("gemma4-e2b", True), ("gemma4-26b-a4b", False), ("qwen3-moe", True)])
def test_the_reference_gives_the_same(name: str, tuned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every shape is tuned, each product runs on our kernels with what surrounds it; else products of several rows go to the library."""
    monkeypatch.setattr(linear, "tuning", lambda *arguments: CONFIG if tuned else tuning(*arguments))
    hf = SHORT_MODELS[name]()
    fused, plain = load(hf, CPU, torch.float32, TritonOps(torch.float32)), load(hf, CPU, torch.float32, reference)
    for count in (1, 3) if tuned else (3,):
        ids = torch.arange(7, 7 + count)
        torch.testing.assert_close(logits_of(fused, ids), logits_of(plain, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", TINY)
def test_the_likeliest_tokens_are_those_of_the_highest_logits(name: str) -> None:
    torch.manual_seed(0)
    device = CUDA if torch.cuda.is_available() else CPU
    hf = TINY[name]()
    for ops in (reference, TritonOps(torch.float32)):
        model = load(hf, device, torch.float32, ops)
        hidden = torch.randn(3, hf.config.hidden_size, device=device)
        assert model.likeliest(hidden).equal(model.compute_logits(hidden).argmax(-1))


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("count", [1, 5, 40, 120])
def test_bfloat16_on_a_gpu_is_as_close_as_the_reference(name: str, count: int) -> None:
    hf = TINY[name]().bfloat16()
    ids = torch.arange(count) * 3 + 5
    exact = logits_of(load(hf, CPU, torch.float32, reference), ids)

    def error(ops: Ops) -> float:
        """The error of the median token, since at a single token a rounding may have chosen another expert."""
        logits = logits_of(load(hf, CUDA, torch.bfloat16, ops), ids.cuda()).cpu()
        return ((logits - exact).norm(dim=1) / exact.norm(dim=1)).median().item()

    assert error(TritonOps(torch.bfloat16)) < 1.5 * error(reference)
