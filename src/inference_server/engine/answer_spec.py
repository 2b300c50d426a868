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
    calls = _calls(request.prompt, model) if isinstance(request.prompt, ChatPrompt) else None
    spec = request.grammar or calls
    if spec is None:
        return None
    if request.grammar is not None and calls is not None and not calls.opener:
        raise InvalidRequestError("an answer cannot be a tool call and fit a grammar as well", param=spec.param)
    if model.grammars is None:
        raise UnsupportedParameterError(
            f"the parameter '{spec.param}' is not supported: this model has no end-of-text token", param=spec.param
        )
    # Each of these may forbid the only tokens that the grammar allows.
    for param, asked in (
        ("ignore_eos", request.ignore_eos),
        ("min_tokens", request.min_tokens),
        ("allowed_token_ids", request.allowed_token_ids is not None),
        ("bad_words", bool(request.bad_words)),
    ):
        if asked:
            raise UnsupportedParameterError(f"the parameter '{param}' is not supported together with '{spec.param}'", param=param)
    return spec


def _calls(prompt: ChatPrompt, model: LoadedModel) -> CallsSpec | None:
    """Arguments must fit their schema where a call is forced, and where a tool is strict; else they may be any object."""
    syntax, forced = with_calls(model.dialect).calls, prompt.forced_calls
    if not (forced or prompt.strict_calls) or syntax is None:
        return None
    functions: dict[str, Any] = {tool["function"]["name"]: tool["function"] for tool in prompt.tools}
    fitting = {*forced, *prompt.strict_calls}
    before, after = syntax.form
    forms = [
        CallForm(
            before.replace("NAME", name),
            json.dumps({"type": "object", **(functions[name]["parameters"] if name in fitting else {})}),
            after,
        )
        for name in forced or functions
    ]
    if forced:
        return CallsSpec(tuple(forms), prompt.parallel_tool_calls, "tools")
    return CallsSpec(tuple(forms), parallel=False, param="tools", opener=syntax.tokens[0])
