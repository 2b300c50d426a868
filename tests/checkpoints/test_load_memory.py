"""Loading streams: what the process holds beyond the model stays far below a shard. The benchmark measures it, in a fresh process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks of memory are read from Linux")
def test_the_peak_beyond_the_model_is_far_under_a_shard() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "bench" / "load_time.py"), "--gigabytes", "0.3", "--shards", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    found = {line[:36].strip(): float(line[36:].split()[0]) for line in done.stdout.splitlines()}
    assert found["largest shard"] > 100
    assert found["model in host memory"] > 290
    # The embedding, a third of the model, is one tensor, and is in memory twice while its layer is made.
    assert found["peak beyond process and model"] < 1.2 * found["largest shard"]
    assert found["mapped file pages gained (RssFile)"] < 0.3 * found["largest shard"]
