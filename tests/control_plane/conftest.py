"""Puts the simulator on the path."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts" / "bench")]
