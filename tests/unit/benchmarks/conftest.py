"""Benchmarks are scripts: their tests import them as Python finds them when one runs."""

import sys
from pathlib import Path

_FOLDER = Path(__file__).parents[3] / "benchmarks"
sys.path[:0] = [str(_FOLDER), str(_FOLDER / "work")]
