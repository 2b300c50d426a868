"""Gated activations on the CPU: `reference.gated` in one pass over a row. Each is the gate times a logistic function of the gate."""

from collections.abc import Callable

from inference_server.kernels.cpu.code import Code, Float, Floats, Int


def gated_gelu_tanh(code: Code, row: Int, gate_up: Floats, out: Floats, size: Int) -> None:
    """out[row] = gelu(gate) * up, for gate_up `[rows, 2 * size]` and out `[rows, size]`."""
    # x / 2 * (1 + tanh(u)) = x * logistic(2 u), with u = sqrt(2 / pi) * (x + 0.044715 x^3)
    _gated(code, row, gate_up, out, size, lambda x: x * (x * x * 0.0713548162726 + 1.5957691216057))


def gated_silu(code: Code, row: Int, gate_up: Floats, out: Floats, size: Int) -> None:
    """out[row] = silu(gate) * up, shapes as above."""
    _gated(code, row, gate_up, out, size, lambda x: x)


def _gated(code: Code, row: Int, gate_up: Floats, out: Floats, size: Int, logit: Callable[[Float], Float]) -> None:
    gate: Floats = gate_up + row * size * 2
    up: Floats = gate + size
    target: Floats = out + row * size
    with code.loop(size) as i:
        x = gate[i]
        target[i] = x / (code.exp(logit(x) * -1.0) + 1.0) * up[i]
