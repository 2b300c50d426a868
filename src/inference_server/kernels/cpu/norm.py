"""RMS norm on the CPU, alone or with the residual addition and the next norm: `reference.add_norm` in one pass over a row.

Half of the operations of a decode step are these few thousand additions, so what counts is how few calls they take.
"""

from inference_server.kernels.cpu.code import Code, Float, Floats, Int


def rms_norm(code: Code, row: Int, x: Floats, weight: Floats, out: Floats, size: Int, eps: Float) -> None:
    """out[row] = norm(x[row]) * weight, for x, out `[rows, size]`."""
    normed = Normed(code, x + row * size, weight, size, eps)
    target: Floats = out + row * size
    with code.loop(size) as i:
        target[i] = normed[i]


def add_rms_norm(
    code: Code,
    row: Int,
    residual: Floats,
    x: Floats,
    weight: Floats,
    next_weight: Floats,
    total: Floats,
    out: Floats,
    size: Int,
    eps: Float,
    scale: Float,
) -> None:
    """total[row] = (residual[row] + norm(x[row]) * weight) * scale; out[row] = norm(total[row]) * next_weight, unless that is None."""
    normed = Normed(code, x + row * size, weight, size, eps)
    before: Floats = residual + row * size
    after: Floats = total + row * size
    with code.loop(size) as i:
        after[i] = (before[i] + normed[i]) * scale
    with code.when(next_weight.exists()):
        rms_norm(code, row, total, next_weight, out, size, eps)


class Normed:
    """norm(x) * weight, by element; creating it emits the sum of squares."""

    def __init__(self, code: Code, x: Floats, weight: Floats, size: Int, eps: Float) -> None:
        squares = code.variable(code.number(0.0))
        with code.loop(size) as i:
            squares.value = squares.value + x[i] * x[i]
        self.x, self.weight = x, weight
        self.factor = code.number(1.0) / code.sqrt(squares.value / size.to_float() + eps)

    def __getitem__(self, i: Int) -> Float:
        return self.x[i] * self.factor * self.weight[i]
