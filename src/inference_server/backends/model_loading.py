"""From a model folder to a hand-written model on a device: its config, its operations, its weights."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from inference_server.backends.device import select_dtype
from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.options import ModelOptions
from inference_server.kernels.ops import Ops
from inference_server.kernels.select_ops import select_host_table, select_ops
from inference_server.models.registry import Model, find_family, read_config
from inference_server.models.weights import RandomTensors, TensorSource, Weights

OpenCheckpoint = Callable[[Path], TensorSource]


@dataclass(frozen=True, slots=True)
class PagedModel:
    """A model with its operations and what its config says. max_model_len: after the operator's limit."""

    architecture: str
    model: Model
    ops: Ops
    dtype: torch.dtype
    groups: tuple[LayerGroup, ...]
    vocab_size: int
    own_max_model_len: int
    max_model_len: int
    num_parameters: int


def load_paged_model(options: ModelOptions, folder: Path, open_checkpoint: OpenCheckpoint, device: torch.device) -> PagedModel:
    """Raises ModelLoadError with one clear line."""
    config_dict = read_config(folder)
    found = find_family(config_dict)
    if found is None:
        raise ModelLoadError(f"architecture {config_dict.get('architectures')} has no hand-written forward; use BACKEND=hf")
    architecture, family = found
    dtype = select_dtype(options.dtype)
    ops = select_ops(device, dtype, options.torch_compile)
    try:
        config = family.config_from_dict(config_dict)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{folder / 'config.json'} is damaged: {error!r}") from error
    host_table = select_host_table(device) if options.ple_offload else None
    quantize = options.quantization == "int8"
    try:
        source = RandomTensors() if options.load_format == "dummy" else open_checkpoint(folder)
        with closing(Weights(source, device, dtype, ops, host_table, quantize)) as weights:
            model = family.model(config, weights)
    except (RuntimeError, MemoryError) as error:  # out of memory is either
        raise ModelLoadError(f"{architecture} cannot be built on {device}: {str(error).partition(chr(10))[0]}") from error
    own_length = config.max_position_embeddings
    return PagedModel(
        architecture=architecture,
        model=model,
        ops=ops,
        dtype=dtype,
        groups=config.layer_groups(dtype.itemsize),
        vocab_size=config.vocab_size,
        own_max_model_len=own_length,
        max_model_len=min(own_length, options.max_model_len or own_length),
        num_parameters=weights.num_parameters,
    )
