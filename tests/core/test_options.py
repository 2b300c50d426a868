"""What options decide themselves: the limits of a step by device."""

from dataclasses import replace

import pytest

from inference_server.core.options import SLOW_CHUNK_TOKENS, SchedulerOptions


@pytest.mark.parametrize(
    ("device", "named", "limit"), [("cuda:0", None, None), ("cuda:0", 64, 64), ("cpu", None, SLOW_CHUNK_TOKENS), ("cpu", 2048, 2048)]
)
def test_a_prompt_is_cut_by_the_device_unless_a_limit_is_named(device: str, named: int | None, limit: int | None) -> None:
    options = SchedulerOptions(max_batched_tokens=8192, prefill_chunk_size=named)
    assert options.on(device) == replace(options, prefill_chunk_size=limit)
