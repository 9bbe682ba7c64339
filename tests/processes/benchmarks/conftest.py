"""Benchmarks are scripts: their tests import them as Python finds them when one runs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture(autouse=True)
def _long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no member of a benchmark's job be dead because the machine is busy."""
    monkeypatch.setenv("PARAMFLEET_LEASE_TTL_S", "30")
