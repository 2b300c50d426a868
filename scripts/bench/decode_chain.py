"""Gemma 4 E2B's decode step without attention, as one CUDA graph: our kernels beside the library's products and eager operations.

    python scripts/bench/decode_chain.py [--rows 1 8 32 256]

Random weights of the real shapes; the embedding lookups are left out too. Prints milliseconds a step, those of the linear layers alone,
and the floor: every weight read once at the card's copy bandwidth. Both ways start from the same weights; each one's logits are compared
with a float32 run, and ours must be as near.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from graph_timer import copy_bytes_per_ms, graph_ms
from torch import Tensor

from inference_server.kernels.activations import Activation
from inference_server.kernels.fused_norm import AddNorm, add_norm
from inference_server.kernels.gemv import Epilogue
from inference_server.kernels.linear import fused_linear, norm_linear, split_linear
from inference_server.kernels.rope_kv import HeadNorms, LayerCache, rope_kv

LAYERS, HIDDEN, HEADS, PLE, VOCAB, EPS = 35, 1536, 8, 256, 262144, 1e-6
FIRST_SHARED, FULL_EVERY, BLOCK_SIZE = 15, 5, 16
MAX_ERROR_RATIO = 1.1  # our logits may not be further from a float32 run than those of eager operations in bfloat16
GATED = Epilogue(Activation.GELU_TANH, gated=True)
PLE_GATE = Epilogue(Activation.GELU_TANH)
LM_HEAD = Epilogue(softcap=30.0, out_dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, and what its norms join it to."""

    head_dim: int
    owns_kv: bool
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    ple_gate: Tensor
    ple_out: Tensor
    into_mlp: AddNorm
    into_ple: AddNorm
    into_next: AddNorm
    head_norms: HeadNorms

    def linears(self) -> tuple[Tensor, ...]:
        return self.qkv, self.out, self.gate_up, self.down, self.ple_gate, self.ple_out


class Ops(Protocol):
    """A way to run the step."""

    def linear(self, x: Tensor, weight: Tensor, epilogue: Epilogue | None = None) -> Tensor: ...

    def split_linear(self, x: Tensor, weight: Tensor) -> Tensor: ...

    def add_norm(self, x: Tensor, residual: Tensor | None, norm: AddNorm) -> tuple[Tensor, Tensor]: ...

    def norm_linear(
        self,
        x: Tensor,
        residual: Tensor | None,
        norm: AddNorm,
        weight: Tensor,
        epilogue: Epilogue | None = None,
        factor: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def rope_kv(self, qkv: Tensor, cos: Tensor, sin: Tensor, norms: HeadNorms, cache: LayerCache | None) -> Tensor: ...


class KernelOps:
    """Ours."""

    linear = staticmethod(fused_linear)
    split_linear = staticmethod(split_linear)
    add_norm = staticmethod(add_norm)
    norm_linear = staticmethod(norm_linear)

    def rope_kv(self, qkv: Tensor, cos: Tensor, sin: Tensor, norms: HeadNorms, cache: LayerCache | None) -> Tensor:
        return rope_kv(qkv, cos, sin, HEADS, norms, cache)


class EagerOps:
    """PyTorch's operations one by one, in the inputs' dtype; the norms' weights are kept in it."""

    def __init__(self) -> None:
        self._cast: dict[tuple[int, torch.dtype], Tensor] = {}

    def linear(self, x: Tensor, weight: Tensor, epilogue: Epilogue | None = None) -> Tensor:
        y = F.linear(x, weight.to(x.dtype))
        if epilogue and epilogue.gated:
            gate, up = y.chunk(2, dim=-1)
            return F.gelu(gate, approximate="tanh") * up
        return y

    def split_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.linear(x, weight)

    def add_norm(self, x: Tensor, residual: Tensor | None, norm: AddNorm) -> tuple[Tensor, Tensor]:
        hidden = x if norm.post is None else self._rms_norm(x, norm.post, norm.eps)
        if residual is not None:
            hidden = residual + hidden
        if norm.scale != 1.0:
            hidden = hidden * norm.scale
        return hidden, hidden if norm.pre is None else self._rms_norm(hidden, norm.pre, norm.eps)

    def norm_linear(
        self,
        x: Tensor,
        residual: Tensor | None,
        norm: AddNorm,
        weight: Tensor,
        epilogue: Epilogue | None = None,
        factor: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        hidden, normed = self.add_norm(x, residual, norm)
        y = self.linear(normed, weight, epilogue)
        if factor is not None:
            y = F.gelu(y, approximate="tanh") * factor
        if epilogue and epilogue.softcap:
            y = epilogue.softcap * torch.tanh(y.float() / epilogue.softcap)
        return hidden, y

    def rope_kv(self, qkv: Tensor, cos: Tensor, sin: Tensor, norms: HeadNorms, cache: LayerCache | None) -> Tensor:
        heads = qkv.unflatten(1, (-1, 2 * cos.shape[1]))
        if cache and norms.k is not None:
            k, v = heads[:, HEADS : HEADS + 1], heads[:, HEADS + 1 :]
            where = (cache.slot_mapping // BLOCK_SIZE, cache.slot_mapping % BLOCK_SIZE)
            cache.key[where] = self._rotated(self._rms_norm(k, norms.k, EPS), cos, sin).to(cache.key.dtype)
            cache.value[where] = F.rms_norm(v, v.shape[-1:], None, EPS).to(cache.value.dtype)
        assert norms.q is not None
        return self._rotated(self._rms_norm(heads[:, :HEADS], norms.q, EPS), cos, sin)

    def _rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        key = (id(weight), x.dtype)
        if key not in self._cast:
            self._cast[key] = weight.to(x.dtype)
        return F.rms_norm(x, x.shape[-1:], self._cast[key], eps)

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class E2B:
    """The step: from scaled embeddings to logits."""

    def __init__(self, device: str) -> None:
        self._generator = torch.Generator(device).manual_seed(0)
        self._device = device
        input_norms = [self._norm() for _ in range(LAYERS)] + [self._norm()]  # the last is the model's final norm
        self.into_first = AddNorm(None, input_norms[0], EPS)
        self.layers = [self._layer(i, input_norms[i + 1]) for i in range(LAYERS)]
        self.ple_projection = self._weight(LAYERS * PLE, HIDDEN)
        # The projection is scaled by HIDDEN ** -0.5 before its norm, which only shows in eps.
        self.into_layers = AddNorm(self._norm(PLE), None, EPS * HIDDEN, scale=2**-0.5)
        self.lm_head = self._weight(VOCAB, HIDDEN)

    def linears(self) -> Iterator[Tensor]:
        yield self.ple_projection
        for layer in self.layers:
            yield from layer.linears()
        yield self.lm_head

    def inputs(self, rows: int) -> tuple[Tensor, Tensor]:
        """Scaled embeddings [rows, HIDDEN] and per-layer embeddings [rows, LAYERS * PLE]."""
        return self._random(rows, HIDDEN), self._random(rows, LAYERS * PLE)

    def step(self, ops: Ops, x: Tensor, ple_embeddings: Tensor) -> Tensor:
        rows = x.shape[0]
        context = ops.linear(x, self.ple_projection).view(-1, PLE)
        ple = ops.add_norm(context, ple_embeddings.view(-1, PLE), self.into_layers)[0].view(rows, LAYERS, PLE)
        angles = {head_dim: self._angles(rows, head_dim) for head_dim in (256, 512)}
        slots = torch.arange(rows, device=self._device)
        hidden, qkv = ops.norm_linear(x, None, self.into_first, self.layers[0].qkv)
        for i, layer in enumerate(self.layers):
            cache = self._cache(layer, slots) if layer.owns_kv else None
            attended = ops.rope_kv(qkv, *angles[layer.head_dim], layer.head_norms, cache).flatten(1)
            hidden, gated = ops.norm_linear(ops.split_linear(attended, layer.out), hidden, layer.into_mlp, layer.gate_up, GATED)
            hidden, gate = ops.norm_linear(ops.split_linear(gated, layer.down), hidden, layer.into_ple, layer.ple_gate, PLE_GATE, ple[:, i])
            x = ops.split_linear(gate, layer.ple_out)
            last = i + 1 == LAYERS
            following, epilogue = (self.lm_head, LM_HEAD) if last else (self.layers[i + 1].qkv, None)
            hidden, qkv = ops.norm_linear(x, hidden, layer.into_next, following, epilogue)
        return qkv

    def linears_only(self, ops: Ops, x: Tensor) -> Tensor:
        ops.linear(x, self.ple_projection)
        for layer in self.layers:
            q = ops.linear(x, layer.qkv)[:, : layer.out.shape[1]].contiguous()
            gated = ops.linear(ops.linear(q, layer.out), layer.gate_up, GATED)
            x = ops.linear(gated, layer.down)
            x = ops.linear(ops.linear(x, layer.ple_gate), layer.ple_out)
        return ops.linear(x, self.lm_head)

    def _layer(self, index: int, next_norm: Tensor) -> Layer:
        owns_kv = index < FIRST_SHARED
        head_dim = 256 if (index + 1) % FULL_EVERY else 512
        mlp = 6144 if owns_kv else 12288
        return Layer(
            head_dim=head_dim,
            owns_kv=owns_kv,
            qkv=self._weight((HEADS + (2 if owns_kv else 0)) * head_dim, HIDDEN),
            out=self._weight(HIDDEN, HEADS * head_dim),
            gate_up=self._weight(2 * mlp, HIDDEN),
            down=self._weight(HIDDEN, mlp),
            ple_gate=self._weight(PLE, HIDDEN),
            ple_out=self._weight(HIDDEN, PLE),
            into_mlp=AddNorm(self._norm(), self._norm(), EPS),
            into_ple=AddNorm(self._norm(), None, EPS),
            into_next=AddNorm(self._norm(), next_norm, EPS, scale=0.9),
            head_norms=HeadNorms(self._norm(head_dim), self._norm(head_dim) if owns_kv else None, owns_kv, EPS),
        )

    def _weight(self, n: int, k: int) -> Tensor:
        return self._random(n, k).mul_(k**-0.5)

    def _norm(self, size: int = HIDDEN) -> Tensor:
        return 0.5 + torch.rand(size, device=self._device, generator=self._generator)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self._device, dtype=torch.bfloat16, generator=self._generator)

    def _angles(self, rows: int, head_dim: int) -> tuple[Tensor, Tensor]:
        angles = torch.linspace(0, 3, rows * head_dim // 2, device=self._device).view(rows, -1)
        return angles.cos().bfloat16(), angles.sin().bfloat16()

    def _cache(self, layer: Layer, slots: Tensor) -> LayerCache:
        blocks = slots.shape[0] // BLOCK_SIZE + 1
        key, value = torch.zeros(2, blocks, BLOCK_SIZE, 1, layer.head_dim, dtype=torch.bfloat16, device=self._device)
        return LayerCache(key, value, slots)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256])
    rows_to_time = parser.parse_args().rows
    model = E2B("cuda")
    weight_bytes = sum(weight.nbytes for weight in model.linears())
    bandwidth = copy_bytes_per_ms()
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e9:.2f} TB/s, weights {weight_bytes / 1e9:.2f} GB")
    print(f"floor {weight_bytes / bandwidth:.2f} ms a step")
    print("rows | step, kernels | step, library + eager | linears, kernels | linears, library | error of the logits, ours and eager")
    ours, eager = KernelOps(), EagerOps()
    for rows in rows_to_time:
        x, ple = model.inputs(rows)
        expected = model.step(eager, x.float(), ple.float())
        error, eager_error = (((model.step(ops, x, ple) - expected).norm() / expected.norm()).item() for ops in (ours, eager))
        assert error <= MAX_ERROR_RATIO * eager_error, f"{rows} rows: relative error {error:.3f}, eager {eager_error:.3f}"
        times = [
            graph_ms(lambda ops=ops, x=x, ple=ple: model.step(ops, x, ple))  # type: ignore[misc]
            for ops in (ours, eager)
        ] + [
            graph_ms(lambda ops=ops, x=x: model.linears_only(ops, x))  # type: ignore[misc]
            for ops in (ours, eager)
        ]
        print(f"{rows:4d} | " + " | ".join(f"{time:.3f}" for time in times) + f" | {error:.4f}, {eager_error:.4f}")


if __name__ == "__main__":
    main()
