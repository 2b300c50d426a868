"""Fifty continuations of contexts, and their scores by transformers on the embedded model in float32."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from transformers import Gemma3ForCausalLM

CONTEXTS = [
    "The capital of France is",
    "def add(a, b):\n    return",
    "Water boils at",
    "Once upon a time, in a village by the sea,",
    "Die Hauptstadt von Deutschland ist",
]
CONTINUATIONS = [
    " Paris.",
    " a + b",
    " one hundred degrees",
    " there lived an old fisherman and his wife",
    " Berlin",
    " 東京",
    " 42",
    "!",
    " 🦊",
    " nothing",
]
ITEMS = list(product(CONTEXTS, CONTINUATIONS))


class Reference:
    """folder: the converted model."""

    def __init__(self, folder: Path) -> None:
        self._model = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int], num_context: int) -> tuple[list[float], bool]:
        """The log-probabilities of the tokens after the context, and whether all of them are the likeliest."""
        logprobs = self._model(torch.tensor([list(token_ids)])).logits[0].log_softmax(-1)
        positions = range(num_context, len(token_ids))
        greedy = all(int(logprobs[i - 1].argmax()) == token_ids[i] for i in positions)
        return [logprobs[i - 1, token_ids[i]].item() for i in positions], greedy
