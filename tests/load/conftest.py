"""Puts the load tools and the HTTP tests' server on the path."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT / "tests" / "api")]
