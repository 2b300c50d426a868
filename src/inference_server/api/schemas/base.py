"""`RequestBody`: the rule for keys that a schema does not declare, in one table.

null is the same as absent. A hint changes nothing in the output and is dropped. A parameter we do not implement is accepted at the value
that asks for nothing, and refused by name at every other; so is a key that nobody knows.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from inference_server.core.errors import UnsupportedParameterError

T = TypeVar("T")

Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused at its first bad item. Else a body of 4 MB holds a million problems, and a minute of the event loop."""


def at_most(limit: int) -> BeforeValidator:
    """Limits the keys of an object before any is looked at, for the same reason: pydantic's `max_length` counts after all are checked."""

    def counted(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > limit:
            raise ValueError(f"there are {len(value)} keys; at most {limit} are allowed")
        return value

    return BeforeValidator(counted)


HINTS = frozenset(
    {
        "include_obfuscation",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
    }
)

NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "add_generation_prompt": (True,),
        "annotations": ([],),
        "background": (False,),
        "best_of": (1,),
        "continue_final_message": (False,),
        "echo": (False,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "include": ([],),
        "length_penalty": (1,),
        "logprobs": (False,),
        "modalities": (["text"],),
        "return_token_ids": (False,),
        "return_token_strs": (False,),
        "spaces_between_special_tokens": (True,),
        "suffix": ("",),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
        "use_beam_search": (False,),
        "verbosity": ("medium",),
    }
)


class RequestBody(BaseModel):
    """A strict JSON object: no coercion between types, no NaN, no unknown key."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        """Raises UnsupportedParameterError, which is no ValueError and so reaches the client as itself."""
        if not isinstance(data, dict):
            return data
        kept = {}
        names = {field.alias or name for name, field in cls.model_fields.items()}
        for key, value in data.items():
            if key in names:
                if value is not None:
                    kept[key] = value
            elif not _asks_for_nothing(key, value):
                raise UnsupportedParameterError(_refusal(key), param=key[:64])
        return kept


def _refusal(key: str) -> str:
    if key in NEUTRAL:
        return f"the parameter '{key}' is not supported with this value"
    return f"the parameter '{key[:64]}' is not supported here"


def _asks_for_nothing(key: str, value: Any) -> bool:
    # In JSON 0 is not false, though Python calls them equal: `logprobs: 0` of /v1/completions does ask for log-probabilities.
    return (
        value is None
        or key in HINTS
        or any(value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in NEUTRAL.get(key, ()))
    )
