"""Templates from every place in which models keep them, and the plain dialogue for models without one."""

import json
from pathlib import Path
from typing import Any

import pytest

from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.errors import ChatTemplateError
from inference_server.tokenization.tokenizer import ByteTokenizer, Tokenizer

TOKENIZER = ByteTokenizer()
TURNS = """\
{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == "forbidden" %}{{ raise_exception("no such role") }}{% endif %}
<turn>{{ message.role }}
{{ message.content }}</turn>
{%- endfor %}
{%- if add_generation_prompt %}

<turn>model
{% endif %}"""


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENIZER.special_tokens)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_model_template_is_rendered_as_it_is() -> None:
    rendered = template(TURNS).render(user("hi"))
    assert rendered == "<bos><turn>user\nhi</turn>\n<turn>model\n"
    assert template(TURNS).render(user("hi"), add_generation_prompt=False) == "<bos><turn>user\nhi</turn>"


def test_sources_in_order(tmp_path: Path) -> None:
    def rendered(override: str | Path | None = None) -> str:
        return ChatTemplate.from_folder(tmp_path, TOKENIZER, override).render(user("x"))

    assert ChatTemplate.from_folder(tmp_path, TOKENIZER).stop_strings == ("\nUser:",)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "one {{ messages[0].content }}"}))
    assert rendered() == "one x"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert rendered() == "default"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert rendered() == "file"
    assert ChatTemplate.from_folder(tmp_path, TOKENIZER).stop_strings == ()
    assert rendered("inline {{ bos_token }}") == "inline <bos>"
    (tmp_path / "other.jinja").write_text("other")
    assert rendered(tmp_path / "other.jinja") == rendered(str(tmp_path / "other.jinja")) == "other"
    with pytest.raises(ChatTemplateError, match="cannot be read"):
        rendered("/no/such/template")


def test_a_template_that_is_no_text_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ChatTemplateError, match="cannot be read"):
        ChatTemplate.from_folder(tmp_path, TOKENIZER)


def test_content_parts_are_joined_and_missing_content_is_empty() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "\nab</turn>" in template(TURNS).render(user(parts))
    assert "\n</turn>" in template(TURNS).render(user(None))
    with pytest.raises(ChatTemplateError, match="'image_url' is not supported"):
        template(TURNS).render(user([{"type": "image_url", "image_url": {}}]))
    with pytest.raises(ChatTemplateError, match="'text' is not supported"):
        template(TURNS).render(user([{"type": "text"}]))


def test_developer_is_the_system_role() -> None:
    assert "<turn>system\nbe brief" in template(TURNS).render([{"role": "developer", "content": "be brief"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content.x }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 + 'a' }}",
        "{{ messages[0] | tojson(indent=x) }}",
        "{{ 1 / 0 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages[0].content.no_such() }}",
    ],
)
def test_render_errors_are_one_kind(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="does not accept"):
        template(source).render(user("x"))


def test_a_template_can_refuse_and_a_broken_one_is_found_at_once() -> None:
    with pytest.raises(ChatTemplateError, match="no such role"):
        template(TURNS).render([{"role": "forbidden", "content": "x"}])
    with pytest.raises(ChatTemplateError, match="not valid Jinja"):
        template("{% for %}")


def test_the_environment_is_that_of_published_templates() -> None:
    assert template("{{ messages[0] | tojson }}").render(user("<é>")) == '{"role": "user", "content": "<é>"}'
    assert template("{{ tools | tojson(indent=1) }}").render(user(""), tools=[{"a": 1}]) == '[\n {\n  "a": 1\n }\n]'
    assert template("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}").render([]) == "01"
    assert template("{% generation %}x{{ thinking }}{% endgeneration %}").render([], thinking=True) == "xTrue"
    assert template("{{ strftime_now('%Y') }}").render([]).isdigit()


def test_the_arguments_of_calls_are_objects() -> None:
    def rendered(arguments: Any) -> str:
        calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        source = "{% for k, v in messages[0].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
        return template(source).render([{"role": "assistant", "content": None, "tool_calls": calls}])

    assert rendered('{"a": 1}') == rendered({"a": 1}) == "a=1"
    assert rendered("") == rendered("{}") == ""
    for arguments in ("[]", "{", "1", "null"):
        with pytest.raises(ChatTemplateError, match="'f' are not a JSON object"):
            rendered(arguments)


def test_results_go_where_the_template_looks_for_them() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": f"f{name}", "arguments": "{}"}} for name in "ab"]
    results = [{"role": "tool", "tool_call_id": name, "content": f"r{name}"} for name in "bac"]
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}, *results, {"role": "user", "content": "x"}]
    embedded = "{% for m in messages %}{{ m.role }}{% for r in m.tool_responses %} {{ r.name }}={{ r.response }}{% endfor %};{% endfor %}"
    assert template(embedded).render(messages) == "assistant fb=rb fa=ra unknown=rc;user;"
    assert template("{# tool_call_id #}" + embedded).render(messages) == "assistant;tool;tool;tool;user;"
    assert template(embedded).render(results[:1]) == "tool;"


def test_the_variables_that_a_template_reads() -> None:
    switch = template("{% set x = 1 %}{{ x }}{% if enable_thinking %}{{ messages }}{% endif %}{{ raise_exception('') if y else '' }}")
    assert {"enable_thinking", "messages", "y"} <= switch.variables
    assert "x" not in switch.variables
    assert {"messages", "tools", "bos_token"} <= switch.reserved


def test_plain_dialogue() -> None:
    plain = ChatTemplate.plain(TOKENIZER)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": " Hi "}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "developer", "content": "Be kind."},
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "Bye"},
    ]
    head, _, dialogue = plain.render(messages).partition("\n\n")
    assert head.startswith("<bos>This is")
    assert head.endswith(" Be brief. Be kind.")
    assert dialogue.count("User: ") == 4
    assert dialogue.endswith("\nUser: Hi\nAssistant: Hello.\nTool: 42\nUser: Bye\nAssistant:")
    assert plain.render(user("Hi"), add_generation_prompt=False).endswith("\nUser: Hi")


def test_prefix_is_what_all_prompts_share() -> None:
    assert template(TURNS).template_prefix_len(TOKENIZER) == len("<turn>user\n") + 1
    assert template("{{ messages[0].content }}").template_prefix_len(TOKENIZER) == 1


def test_bos_of_the_template_is_not_doubled(fallback: Tokenizer) -> None:
    rendered = ChatTemplate.plain(fallback).render(user("fox"))
    ids = fallback.encode(rendered)
    assert rendered.startswith("<bos>")
    assert ids.count(fallback.bos_token_id or -1) == 1
