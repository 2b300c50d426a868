"""What the allowed set is, written with a sort: the definition that the fast searches are tested against. Not used in serving.

Order, as in transformers: temperature, top-k, top-p over the rest renormalised, min-p. (vLLM applies min-p before top-k and top-p;
the two differ only where min-p removes mass that top-p would have counted.) Tokens rank by logit, equal logits by lower id.
"""

from math import log

import torch
from torch import Tensor

from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.nucleus import fixed_point_top_p, nucleus_mass, token_weights


def allowed_set(values: Tensor, params: SamplingParams) -> set[int]:
    """Ids that one row may draw. values: [V] float32 logits, temperature applied."""
    ranked = values.sort(descending=True, stable=True).indices
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.top_p < 1.0:
        weights = token_weights(values[ranked])
        mass_before = weights.cumsum(0) - weights
        ranked = ranked[mass_before < nucleus_mass(weights.sum(), fixed_point_top_p(params.top_p))]
    if params.min_p > 0.0:
        floor = log(params.min_p)
        ranked = torch.stack([token for token in ranked if values[token] - values.max() >= floor])
    return set(ranked.tolist())
