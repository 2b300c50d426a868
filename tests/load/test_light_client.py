"""The raw-socket client counts what a real server streams."""

import pytest
from http_load.light_client import completion, stream_all
from load_server import serving


def test_events_tokens_and_marks() -> None:
    marks: list[tuple[str, int]] = []
    with serving(step_time_s=0.0) as server:
        requests = [completion(server.url, f"prompt {i}", 20 + i) for i in range(3)]
        streams = stream_all(server.url, requests, lambda n: marks.append(("full", n)), lambda n: marks.append(("thin", n)))
    assert [stream.num_tokens for stream in streams] == [20, 21, 22]
    for stream in streams:
        assert 3 < stream.num_events <= stream.num_tokens + 3, "the end, the usage and [DONE] are events too"
        assert stream.times == sorted(stream.times)
        assert stream.sent <= stream.times[0]
    assert sorted(mark for mark, _ in marks) == ["full", "thin"]
    assert all(3 <= number <= sum(stream.num_events for stream in streams) for _, number in marks)


def test_an_answer_that_is_no_stream_is_an_error() -> None:
    with serving() as server, pytest.raises(RuntimeError, match="temperature"):
        stream_all(server.url, [completion(server.url, "prompt", 1, temperature=9)])
