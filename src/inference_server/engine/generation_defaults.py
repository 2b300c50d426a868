"""Sampling defaults that a checkpoint brings along, in generation_config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inference_server.core.errors import ModelLoadError
from inference_server.core.model_spec import GenerationDefaults

# An integral limit takes integers only.
SAMPLING_LIMITS: Mapping[str, float] = MappingProxyType(
    {"temperature": 100.0, "top_p": 1.0, "top_k": 2**31 - 1, "min_p": 1.0, "repetition_penalty": 10.0}
)


def generation_defaults(folder: Path) -> GenerationDefaults:
    """Sampling defaults of generation_config.json; what it does not name stays OpenAI's. Raises ModelLoadError for what cannot be one."""
    path = folder / "generation_config.json"
    config = _read_json(path)
    values = {name: config[name] for name in SAMPLING_LIMITS if config.get(name) is not None}
    for name, value in values.items():
        limit = SAMPLING_LIMITS[name]
        if type(value) not in (int, type(limit)) or not 0 <= value <= limit:
            raise ModelLoadError(f"{path}: {name} is {json.dumps(value)[:64]}, and not a number from 0 to {limit}")
        if name == "repetition_penalty" and not value:
            raise ModelLoadError(f"{path}: repetition_penalty is 0, and logits are divided by it")
    return GenerationDefaults(**values)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty when there is no file. Raises ModelLoadError when it cannot be read."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: unreadable ({error})") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path}: not a JSON object")
    return content
