"""What the answer to a request must fit: the client's grammar, or the calls that a chat forces, in the form of the model's dialect."""

import json
from typing import Any

from inference_server.core.errors import InvalidRequestError, UnsupportedParameterError
from inference_server.core.generation import ChatPrompt, GenerationRequest
from inference_server.core.grammar import AnswerSpec, CallForm, CallsSpec
from inference_server.engine.loaded_model import LoadedModel
from inference_server.parsing.dialect import with_calls


def answer_spec(request: GenerationRequest, model: LoadedModel) -> AnswerSpec | None:
    """None where any text will do. Raises InvalidRequestError for parameters that a grammar leaves no room for."""
    forced = isinstance(request.prompt, ChatPrompt) and bool(request.prompt.forced_calls)
    spec = _calls(request.prompt, model) if forced and isinstance(request.prompt, ChatPrompt) else request.grammar
    if spec is None:
        return None
    if forced and request.grammar is not None:
        raise InvalidRequestError("an answer cannot be a tool call and fit a grammar as well", param=request.grammar.param)
    if model.grammars is None:
        raise UnsupportedParameterError(
            f"the parameter '{spec.param}' is not supported: this model has no end-of-text token", param=spec.param
        )
    # Each of these may forbid the only tokens that the grammar allows.
    for param, asked in (
        ("ignore_eos", request.ignore_eos),
        ("min_tokens", request.min_tokens),
        ("allowed_token_ids", request.allowed_token_ids is not None),
    ):
        if asked:
            raise UnsupportedParameterError(f"the parameter '{param}' is not supported together with '{spec.param}'", param=param)
    return spec


def _calls(prompt: ChatPrompt, model: LoadedModel) -> CallsSpec:
    syntax = with_calls(model.dialect).calls
    assert syntax is not None
    before, after = syntax.form
    functions: dict[str, Any] = {tool["function"]["name"]: tool["function"] for tool in prompt.tools}
    forms = tuple(
        CallForm(before.replace("NAME", name), json.dumps({"type": "object", **functions[name]["parameters"]}), after)
        for name in prompt.forced_calls
    )
    return CallsSpec(forms, prompt.parallel_tool_calls, "tools")
