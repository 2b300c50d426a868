"""The gated activation on the CPU: `reference.gelu_mul` in one pass over a row."""

from inference_server.kernels.cpu_jit import Code, Floats, Int


def gelu_mul(code: Code, row: Int, gate_up: Floats, out: Floats, size: Int) -> None:
    """out[row] = gelu(gate) * up, for gate_up `[rows, 2 * size]` and out `[rows, size]`."""
    gate: Floats = gate_up + row * size * 2
    up: Floats = gate + size
    target: Floats = out + row * size
    with code.loop(size) as i:
        x = gate[i]
        # tanh's gelu, x / 2 * (1 + tanh(u)), is x times the logistic function of 2u.
        doubled = x * (x * x * (2 * 0.044715 * 0.7978845608) + 2 * 0.7978845608)
        target[i] = x / (code.exp(doubled * -1.0) + 1.0) * up[i]
