"""Every family with int8 linear layers computes what it would compute with the numbers that the int8 weights stand for."""

import json

import pytest
import torch
from forward_driver import DictSource, logits_of
from tiny_models import TINY
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.quantize import quantize_weight
from inference_server.models.registry import find_family
from inference_server.models.weights import Weights

UNQUANTIZED = ("router.", "mlp.gate.", "experts.", "embed_tokens_per_layer.")


def rounded(tensor: Tensor) -> Tensor:
    return quantize_weight(tensor).rows(torch.arange(len(tensor)))


@pytest.mark.parametrize("name", TINY)
def test_all_matrices_but_routers_and_tables_are_int8(name: str) -> None:
    original = TINY[name]()
    config = {**json.loads(original.config.to_json_string()), "architectures": [type(original).__name__]}
    tensors = dict(original.state_dict())
    kept = UNQUANTIZED if config["tie_word_embeddings"] else (*UNQUANTIZED, "embed_tokens.")
    representable = {
        name: rounded(tensor) if tensor.ndim == 2 and not any(part in name for part in kept) else tensor for name, tensor in tensors.items()
    }
    found = find_family(config)
    assert found is not None
    ids = torch.randint(0, 512, (50,))

    def logits(source: dict[str, Tensor], quantize: bool) -> Tensor:
        weights = Weights(DictSource(source), torch.device("cpu"), torch.float32, reference, quantize=quantize)
        return logits_of(found[1].model(found[1].config_from_dict(config), weights), ids)

    int8 = logits(tensors, quantize=True)
    torch.testing.assert_close(int8, logits(representable, quantize=False), atol=2e-4, rtol=0)
    assert (int8 - logits(tensors, quantize=False)).abs().max() > 1e-3
