"""The server that outside clients talk to: the embedded model in float32, so that their figures can be held against transformers'."""

from collections.abc import Iterator

import pytest
from server_process import serving


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("home"), DTYPE="float32", KV_CACHE_NUM_BLOCKS="512") as (address, _):
        yield f"{address}/v1"
