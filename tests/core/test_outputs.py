"""Several deltas that a slow reader gets as one."""

from inference_server.core.outputs import CallState, OutputDelta, ToolCallDelta


def test_calls_merge_by_index() -> None:
    whole = OutputDelta()
    for pieces in (
        (ToolCallDelta(0, "a", "f", "{"), ToolCallDelta(0, arguments="}", state=CallState.COMPLETE)),
        (ToolCallDelta(1, "b", "g"),),
        (),
        (ToolCallDelta(1, arguments="{}", state=CallState.COMPLETE),),
    ):
        whole.merge(OutputDelta(tool_calls=pieces))
    assert whole.tool_calls == (
        ToolCallDelta(0, "a", "f", "{}", CallState.COMPLETE),
        ToolCallDelta(1, "b", "g", "{}", CallState.COMPLETE),
    )


def test_a_broken_call_leaves_nothing_but_that() -> None:
    whole = OutputDelta(tool_calls=(ToolCallDelta(0, "a", "f", "{"),))
    whole.merge(OutputDelta(text="markup", reasoning="hm", tool_calls=(ToolCallDelta(0, state=CallState.BROKEN),)))
    whole.merge(OutputDelta(reasoning="!"))
    assert whole.tool_calls == (ToolCallDelta(0, state=CallState.BROKEN),)
    assert (whole.text, whole.reasoning) == ("markup", "hm!")
