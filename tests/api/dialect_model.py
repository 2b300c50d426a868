"""A model for HTTP tests that says what the test tells it to, in the formats of Gemma 4 and Qwen3.

Its vocabulary is bytes and the markers of these formats, each as a single special token, as Gemma 4 has them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from api_server import TestServer
from echo_model import MAX_MODEL_LEN, SPEC, EchoBackend, load_echo

from inference_server.config import Settings
from inference_server.core.request import ScheduledRequest
from inference_server.engine.loaded_model import LoadedModel
from inference_server.parsing.dialect import detect_dialect
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

MARKERS = ["<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>"]
MARKERS += ["<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']
FIRST_ID = ByteTokenizer().vocab_size

GEMMA_TEMPLATE = """\
{{ bos_token }}
{%- macro quoted(text) %}<|"|>{{ text }}<|"|>{% endmacro %}
{%- macro written(value) %}
{%- if value is string %}{{ quoted(value) }}
{%- elif value is mapping %}{ {%- for key, item in value.items() %}{{ key }}:{{ written(item) }}{{ "," if not loop.last }}{% endfor %}}
{%- elif value is iterable %}[{% for item in value %}{{ written(item) }}{{ "," if not loop.last }}{% endfor %}]
{%- else %}{{ value | tojson }}{% endif %}
{%- endmacro %}
{%- set first = messages[0] %}
{%- if enable_thinking or tools or first.role == "system" %}<|turn>system
{{ "<|think|>" if enable_thinking }}{{ first.content if first.role == "system" }}
{%- for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{{ written(tool.function.parameters) }}<tool|>{% endfor %}<turn|>
{% endif %}
{%- for message in messages if message.role != "system" %}
{%- if message.role == "tool" %}<|tool_response>response:{{ message.tool_call_id }}{value:{{ quoted(message.content) }}}<tool_response|>
{%- else %}<|turn>{{ "model" if message.role == "assistant" else message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<|tool_call>call:{{ call.function.name }}{{ written(call.function.arguments) }}<tool_call|>
{%- endfor %}
{%- if not message.tool_calls %}<turn|>
{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != "tool" %}<|turn>model
{% if empty_thought %}<|channel>thought
<channel|>{% endif %}
{%- endif %}"""

QWEN_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% elif opened %}<think>
{% endif %}"""


class MarkerTokenizer(ByteTokenizer):
    eos_token_ids = (257, FIRST_ID + MARKERS.index("<turn|>"), FIRST_ID + MARKERS.index("<|tool_response>"))

    def __init__(self) -> None:
        super().__init__(FIRST_ID + len(MARKERS))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = [self.bos_token_id] * (add_special_tokens or text.startswith("<bos>"))
        for piece in re.split(f"({'|'.join(map(re.escape, MARKERS))})", text.removeprefix("<bos>")):
            ids += [FIRST_ID + MARKERS.index(piece)] if piece in MARKERS else list(piece.encode())
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return MARKERS[token_id - FIRST_ID].encode() if FIRST_ID <= token_id < self.vocab_size else super().token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256


TOKENIZER = MarkerTokenizer()


@dataclass
class ScriptedBackend(EchoBackend):
    """Answers every request with `answer`, then end of text. prompts: the texts that it was asked."""

    template: str = GEMMA_TEMPLATE
    answer: str = ""
    prompts: list[str] = field(default_factory=list)

    def token(self, request: ScheduledRequest, position: int) -> int:
        index = position - request.num_prompt_tokens
        if not index:
            self.prompts.append(TOKENIZER.decode(request.token_ids, skip_special_tokens=False))
        answer: Sequence[int] = TOKENIZER.encode(self.answer, add_special_tokens=False)
        return answer[index] if index < len(answer) else TOKENIZER.eos_token_ids[0]


def scripted(server: TestServer, answer: str) -> ScriptedBackend:
    """The server's backend, set to answer `answer`, with no prompts so far."""
    assert isinstance(server.backend, ScriptedBackend)
    server.backend.answer = answer
    server.backend.prompts.clear()
    return server.backend


def load_dialect(settings: Settings, backend: EchoBackend) -> LoadedModel:
    assert isinstance(backend, ScriptedBackend)
    template = ChatTemplate(backend.template, TOKENIZER.special_tokens)
    spec = replace(SPEC, vocab_size=TOKENIZER.vocab_size, max_model_len=MAX_MODEL_LEN)
    dialect = detect_dialect(backend.template)
    return replace(load_echo(settings, backend), tokenizer=TOKENIZER, template=template, spec=spec, dialect=dialect)
