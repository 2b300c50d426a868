"""Starts a local Ray with Serve's proxy, for tests and benches that need a fleet. Only one can run at a time."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import ray
from ray import serve
from ray.serve.config import HTTPOptions

PORT = 8765
ROOT = Path(__file__).parents[2]
OBJECT_STORE_BYTES = 100 * 2**20


@contextmanager
def cluster(paths: Sequence[Path] = ()) -> Iterator[str]:
    """Run a Ray and yield the proxy's address. Ray's processes can import the sources, this folder and what lies in `paths`."""
    os.environ["PYTHONPATH"] = ":".join(map(str, (ROOT / "src", Path(__file__).parent, *paths)))
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is 15, which lets everything else run before the fleet
    ray.init(num_cpus=2, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False, configure_logging=False)
    try:
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=PORT))
        yield f"http://127.0.0.1:{PORT}"
    finally:
        serve.shutdown()
        ray.shutdown()
