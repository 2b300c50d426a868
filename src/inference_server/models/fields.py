"""A parsed config.json as a model's config reads it: the text part, required fields, and a refusal of what no forward implements."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_server.core.errors import ModelLoadError

_SIZES = {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
}


class ConfigFields(dict[str, Any]):
    """The fields of the text model; those of a multimodal checkpoint lie one level down. A missing one raises ModelLoadError.

    A size that is not a positive integer raises it at once; a size of null counts as missing.
    """

    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        super().__init__({**config, **config.get("text_config", {})})
        self.family = family
        for name in _SIZES & self.keys():
            if self[name] is None:
                del self[name]
            elif type(self[name]) is not int or self[name] < 1:
                raise self.refusal(name, self[name])

    def __missing__(self, name: str) -> Any:
        raise ModelLoadError(f"config.json has no {name}")

    def check(self, built: Mapping[str, tuple[object, ...]]) -> None:
        """Raises ModelLoadError for a field that is there with a value other than the forward implements."""
        for name, values in built.items():
            if name in self and self[name] not in values:
                raise self.refusal(name, self[name])

    def refusal(self, name: str, value: object) -> ModelLoadError:
        return ModelLoadError(f"{name} = {value!r} is not supported for {self.family}")


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """Rotary frequencies theta^(-2j / head_dim) / factor. proportion: the share of pairs j that rotate, the first ones; the others stay."""

    theta: float
    factor: float = 1.0
    proportion: float = 1.0

    @classmethod
    def from_fields(cls, parameters: Mapping[str, Any], default_theta: float, config: ConfigFields) -> "RopeParameters":
        """From one entry of `rope_parameters`, or from the older `rope_scaling`. Raises ModelLoadError for a type that is not built."""
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        theta = float(parameters.get("rope_theta", default_theta))
        match kind:
            case "default":
                return cls(theta)
            case "linear":
                return cls(theta, factor=float(parameters["factor"]))
            case "proportional":
                return cls(theta, float(parameters.get("factor", 1.0)), float(parameters.get("partial_rotary_factor", 1.0)))
        raise config.refusal("rope type", kind)
