"""Facts that loading a model brings to light, as frozen values. Configuration is never changed after construction: it is answered."""

from dataclasses import dataclass

from inference_server.core.kv_layout import LayerGroup


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a backend knows once its weights are loaded.

    max_model_len: the model's own context length in tokens. free_bytes: device memory left for the KV arena.
    supports_mixed: decodes and prefill chunks of several requests may share one forward.
    supports_overlap: a step may be launched before the one before it has been collected.
    supports_prompt_logprobs: a step can tell the log-probabilities of the prompt tokens it computes.
    """

    architecture: str
    vocab_size: int
    max_model_len: int
    groups: tuple[LayerGroup, ...]
    device: str
    dtype: str
    num_parameters: int
    free_bytes: int
    supports_mixed: bool = True
    supports_overlap: bool = False
    supports_prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling values a request gets where it names none: the checkpoint's generation_config, else OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
