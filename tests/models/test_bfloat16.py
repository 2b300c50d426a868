"""Every family in bfloat16: its error, against fp32 arithmetic on the same weights, is at most 1.5 times that of transformers."""

import json

import pytest
import torch
from forward_driver import DictSource, logits_of
from tiny_models import TINY
from torch import Tensor

from inference_server.models.registry import find_family
from inference_server.models.weights import Weights


@pytest.mark.parametrize("name", TINY)
def test_bfloat16_logits_are_as_close_as_those_of_transformers(name: str) -> None:
    reference = TINY[name]().bfloat16()
    config = {**json.loads(reference.config.to_json_string()), "architectures": [type(reference).__name__]}
    found = find_family(config)
    assert found is not None
    source = DictSource({name: tensor.clone() for name, tensor in reference.state_dict().items()})
    model = found[1].model(found[1].config_from_dict(config), Weights(source, torch.device("cpu"), torch.bfloat16))
    ids = torch.randint(0, 512, (50,))
    with torch.no_grad():
        theirs = reference(ids[None]).logits[0].float()
        exact = reference.float()(ids[None]).logits[0]

    def error(logits: Tensor) -> float:
        return ((logits - exact).norm() / exact.norm()).item()

    assert error(logits_of(model, ids)) < 1.5 * error(theirs)
