"""`PromptEncoder`: from the body of a request to its `RoutingKey`, by the model's own tokenizer and chat template.

It leaves every judgement to the replica: a body that is not understood has a key that says nothing, and goes where there is least to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from control_plane.routing_key import RoutingKey
from inference_server.api.schemas.chat import ChatCompletionBody
from inference_server.api.schemas.completions import CompletionBody
from inference_server.api.schemas.native import GenerateBody
from inference_server.api.schemas.responses import ResponsesBody
from inference_server.api.schemas.sampling import SamplingBody
from inference_server.core.chunk_hash import ChunkHasher
from inference_server.core.errors import InferenceServerError
from inference_server.core.generation import ChatPrompt
from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.errors import ChatTemplateError

SCHEMAS: Mapping[str, type[SamplingBody]] = MappingProxyType(
    {
        "/generate": GenerateBody,
        "/v1/completions": CompletionBody,
        "/v1/chat/completions": ChatCompletionBody,
        "/v1/responses": ResponsesBody,
    }
)


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """What a replica tells about its model, in values that can be pickled, unlike a compiled template. chunk_tokens: of its journal."""

    tokenizer: TokenizerLike
    template_source: str
    chunk_tokens: int


class PromptEncoder:
    """Pure, and safe to run in a worker thread."""

    def __init__(self, prompts: PromptFormat, salt: bytes) -> None:
        self._tokenizer = prompts.tokenizer
        self._template = ChatTemplate(prompts.template_source, prompts.tokenizer.special_tokens)
        self._hasher = ChunkHasher(salt, prompts.chunk_tokens)

    def key(self, path: str, body: bytes) -> RoutingKey:
        """The key of a generation; of any other request, one that says nothing. Of several prompts the first counts."""
        schema = SCHEMAS.get(path)
        if schema is None:
            return RoutingKey()
        try:
            request = schema.model_validate_json(body)
            token_ids = self._token_ids(_prompt(request))
        except (ValueError, InferenceServerError, ChatTemplateError):
            return RoutingKey()
        names = self._hasher.chain(token_ids, request.cache_salt)
        return RoutingKey(tuple(names), len(token_ids), self._hasher.chunk_tokens)

    def _token_ids(self, prompt: str | Sequence[int] | ChatPrompt) -> Sequence[int]:
        if isinstance(prompt, ChatPrompt):
            variables = {**self._template.switches(prompt.reasoning_effort), **prompt.variables}
            if self._template.reserved.intersection(variables):
                raise ValueError("the template's own variables are the server's to set")
            prompt = self._template.render(prompt.messages, tools=prompt.tools, **variables)
        return self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


def _prompt(request: SamplingBody) -> str | Sequence[int] | ChatPrompt:
    match request:
        case GenerateBody():
            return ChatPrompt([{"role": "user", "content": request.text}], variables=request.chat_template_kwargs)
        case CompletionBody():
            return request.prompts[0]
        case ChatCompletionBody() | ResponsesBody():
            return request.prompt()
    raise ValueError("no route of generations")
