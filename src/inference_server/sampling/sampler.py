"""`Sampler`: one token for each row of logits. First the set of allowed tokens, then a Gumbel-max draw among them.

A draw is a pure function of the row's logits, its parameters and (seed, position): neighbours, batch order and device do not enter.
Masks and penalties are the caller's: it changes the logits before they come here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.bisection import allowed_mask
from inference_server.sampling.narrowing import allowed_tokens
from inference_server.sampling.noise import gumbel, hash_tokens, row_keys


class Sampler:
    """Keeps the token hashes of one vocabulary, nothing of any request."""

    def __init__(self) -> None:
        self._hashes = torch.empty(0, dtype=torch.int32)

    def __call__(self, logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> Tensor:
        """Sampled ids [R] int64 on the device of `logits` ([R, V] float32, left as they are).

        positions[i] is the index that row i's token will have in its sequence.
        """
        drawn = [row for row, row_params in enumerate(params) if not row_params.greedy]
        if not drawn:
            return _argmax(logits)
        row_params = [params[row] for row in drawn]
        keys = row_keys([p.seed for p in row_params], [positions[row] for row in drawn], logits.device)
        hashes = self._token_hashes(logits.shape[-1], logits.device)
        if logits.device.type == "cpu":
            tokens = [_draw_row(logits[row], p, keys[i : i + 1], hashes) for i, (row, p) in enumerate(zip(drawn, row_params, strict=True))]
            drawn_ids = torch.tensor(tokens)
        elif len(drawn) == len(params):
            return _draw_rows(logits, row_params, keys, hashes)
        else:
            drawn_ids = _draw_rows(logits[drawn], row_params, keys, hashes)
        if len(drawn) == len(params):
            return drawn_ids
        sampled = torch.empty(len(params), dtype=torch.int64, device=logits.device)
        greedy = [row for row, p in enumerate(params) if p.greedy]
        sampled[greedy] = _argmax(logits[greedy])
        sampled[drawn] = drawn_ids
        return sampled

    def _token_hashes(self, vocab_size: int, device: torch.device) -> Tensor:
        if self._hashes.numel() != vocab_size or self._hashes.device != device:
            self._hashes = hash_tokens(torch.arange(vocab_size, device=device))
        return self._hashes


def _argmax(logits: Tensor) -> Tensor:
    """[R, V] to [R], the lowest id of equals. On a CPU by numpy, which is vectorised: an eighth of torch's time or less."""
    return torch.from_numpy(logits.numpy().argmax(-1)) if logits.device.type == "cpu" else logits.argmax(-1)


def _draw_row(logits: Tensor, params: SamplingParams, key: Tensor, hashes: Tensor) -> int:
    """logits [V], key [1, 2], hashes [V]: noise is made for the allowed tokens only."""
    # With the maximum at zero, no temperature is too low to divide by.
    values = (logits - logits.max()).div_(params.temperature)
    if not _restricted(params):
        return int(values.add_(gumbel(key, hashes)[0]).numpy().argmax())
    ids = allowed_tokens(values, params.top_k, params.top_p, params.min_p)
    return int(ids[values[ids].add_(gumbel(key, hashes[ids])[0]).argmax()])


def _draw_rows(logits: Tensor, params: Sequence[SamplingParams], keys: Tensor, hashes: Tensor) -> Tensor:
    """logits [R, V], keys [R, 2], hashes [V]: the same draw for all rows at once, without waiting for the device."""
    temperatures = torch.tensor([p.temperature for p in params], device=logits.device).unsqueeze(1)
    values = (logits - logits.amax(-1, keepdim=True)).div_(temperatures)
    restricted = [row for row, p in enumerate(params) if _restricted(p)]
    if restricted:
        rows = torch.tensor(restricted, device=logits.device)
        left = values[rows]
        values[rows] = left.masked_fill_(~allowed_mask(left, [params[row] for row in restricted]), -torch.inf)
    return values.add_(gumbel(keys, hashes)).argmax(-1)


def _restricted(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
