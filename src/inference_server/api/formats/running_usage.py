"""`RunningUsage`: token counts in every chunk of a stream, as vLLM's `continuous_usage_stats`.

A collaborator of the OpenAI formats, made only for requests that ask, so that the others' chunks stay encoded but for their text.
"""

from inference_server.api.formats.base import encode
from inference_server.core.outputs import OutputDelta

_NO_USAGE = b'"usage":null'  # in a text its quotes would be escaped


class RunningUsage:
    """The counts so far of each choice of one request, whose first deltas bring the prompt."""

    def __init__(self) -> None:
        self._num_prompt: dict[int, int] = {}
        self._num_completion: dict[int, int] = {}

    def put(self, events: bytes, delta: OutputDelta) -> bytes:
        """The events of a delta, with the counts of its choice up to its end in place of null."""
        index = delta.index
        if delta.prompt is not None:
            self._num_prompt[index] = len(delta.prompt.token_ids)
        self._num_completion[index] = self._num_completion.get(index, 0) + len(delta.token_ids)
        prompt, completion = self._num_prompt.get(index, 0), self._num_completion[index]
        if delta.usage is not None:
            prompt, completion = delta.usage.prompt_tokens, delta.usage.completion_tokens
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return events.replace(_NO_USAGE, b'"usage":' + encode(usage))
