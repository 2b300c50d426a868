"""act(gate) * up against PyTorch's activations."""

import pytest
import torch
from triton_cases import assert_near, randn

from inference_server.kernels import reference
from inference_server.kernels.composed import activate
from inference_server.kernels.gpu.gated import gated, gated_by, softcapped
from inference_server.kernels.ops import Activation


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy, in the interpreter
@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("tokens, n", [(1, 7), (3, 64), (2, 1500)])
def test_gated(tokens: int, n: int, activation: Activation) -> None:
    torch.manual_seed(n)
    gate_up = 3 * randn(tokens, 2 * n)
    assert_near(gated(gate_up, activation), reference.gated(gate_up, activation))


def test_the_factor_may_be_a_slice_of_a_wider_tensor() -> None:
    torch.manual_seed(0)
    gate, factor = randn(3, 40), randn(3, 5, 40)[:, 2]
    assert_near(gated_by(gate, factor, Activation.GELU_TANH), activate(gate, Activation.GELU_TANH) * factor)


def test_softcapped() -> None:
    torch.manual_seed(0)
    y = 20 * randn(3, 1500)
    assert_near(softcapped(y, 30.0, torch.float32), 30 * torch.tanh(y / 30))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens, n", [(1, 12288), (256, 6144), (4096, 256)])
def test_real_shapes(tokens: int, n: int) -> None:
    torch.manual_seed(0)
    gate_up = 30 * randn(tokens, 2 * n, dtype=torch.bfloat16)
    assert_near(gated(gate_up, Activation.GELU_TANH), reference.gated(gate_up.float(), Activation.GELU_TANH).bfloat16())
