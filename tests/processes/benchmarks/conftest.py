"""Benchmarks are scripts: their tests import them as Python finds them when one runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
