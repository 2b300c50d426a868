"""Which markers belong to which chat template."""

import pytest

from inference_server.parsing.dialect import GEMMA_CALLS, GEMMA_THOUGHT, JSON_CALLS, THINK_TAGS, Dialect, detect_dialect


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        ("{{ '<|channel>thought' }} {{ '<|tool_call>call:' }}", Dialect(GEMMA_THOUGHT, GEMMA_CALLS)),
        ("{{ '<|tool_call>' }}", Dialect(None, GEMMA_CALLS)),
        ("{{ '<think>' }} {{ '</think>' }} <tool_call> ", Dialect(THINK_TAGS, JSON_CALLS)),
        ("content.split('</think>')", Dialect(THINK_TAGS, None)),
        ("<tool_call>\n{", Dialect(None, JSON_CALLS)),
        ("<tool_call>\n<function=f>", None),
        ("<start_of_turn>model", None),
        ("", None),
    ],
)
def test_detection(template: str, dialect: Dialect | None) -> None:
    assert detect_dialect(template) == dialect


def test_the_markers_of_an_answer() -> None:
    dialect = Dialect(THINK_TAGS, JSON_CALLS)
    assert dialect.tokens(tools=False) == ("<think>", "</think>")
    assert dialect.tokens(tools=True) == ("<think>", "</think>", "<tool_call>", "</tool_call>")
