"""From the BACKEND setting to a backend. Each is imported only when it is chosen."""

from pathlib import Path
from typing import Any

from inference_server.backends.base import InferenceBackend
from inference_server.core.errors import ModelLoadError
from inference_server.core.options import ModelOptions


def create_backend(options: ModelOptions, folder: Path) -> InferenceBackend[Any]:
    """The backend for the model in `folder`, not loaded yet. Raises ModelLoadError for a setting or folder that cannot work.

    auto: the hand-written forward where the architecture has one, else transformers.
    """
    from inference_server.backends.device import select_device
    from inference_server.models.registry import find_family, read_config

    match options.backend:
        case "custom":
            return _paged(options, folder)
        case "hf":
            return _transformers(options, folder)
        case "auto":
            return _paged(options, folder) if find_family(read_config(folder)) else _transformers(options, folder)
        case "custom-cuda":
            if (kind := select_device(options.device).type) != "cuda":
                raise ModelLoadError(f"BACKEND=custom-cuda runs on CUDA; DEVICE={options.device} is {kind} here")
            return _paged(options, folder)
    raise ModelLoadError(f"BACKEND {options.backend!r} is not one of auto, custom, custom-cuda, hf")


def _paged(options: ModelOptions, folder: Path) -> InferenceBackend[Any]:
    from inference_server.backends.paged_backend import PagedBackend
    from inference_server.checkpoints.safetensors_reader import open_checkpoint
    from inference_server.sampling.token_sampler import TokenSampler

    return PagedBackend(options, folder, open_checkpoint, TokenSampler(options.max_batch_size))


def _transformers(options: ModelOptions, folder: Path) -> InferenceBackend[Any]:
    if options.ple_offload:
        raise ModelLoadError("PLE_OFFLOAD needs a hand-written forward, and this model would run on BACKEND=hf")
    if options.block_mass:
        raise ModelLoadError("EVICTION_POLICY=h2o needs attention weights, which transformers does not give; use lru or sink_lru")
    if options.quantization != "none":
        raise ModelLoadError(f"QUANTIZATION={options.quantization} needs a hand-written forward; transformers runs this model")
    from inference_server.backends.torch_backend import TorchBackend
    from inference_server.sampling.token_sampler import TokenSampler

    return TorchBackend(options, folder, TokenSampler(options.max_batch_size))
