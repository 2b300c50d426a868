"""Which backend runs a model folder."""

import json
from pathlib import Path
from typing import Any

from inference_server.backends.base import InferenceBackend
from inference_server.backends.paged_backend import PagedBackend
from inference_server.backends.torch_backend import TorchBackend
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.options import ModelOptions
from inference_server.models.registry import find_family
from inference_server.sampling.sampler import Sampler


def create_backend(options: ModelOptions, folder: Path) -> InferenceBackend[Any]:
    """The backend that `options.backend` names; "auto" takes the hand-written forward where the architecture has one."""
    if options.backend == "custom" or (options.backend == "auto" and _has_own_forward(folder)):
        return PagedBackend(options, folder, open_checkpoint, Sampler())
    return TorchBackend(options, folder, Sampler())


def _has_own_forward(folder: Path) -> bool:
    """A config.json that cannot be read has none; the backend that is tried then says what is wrong with it."""
    try:
        return find_family(json.loads((folder / "config.json").read_text(encoding="utf-8"))) is not None
    except (OSError, ValueError):
        return False
