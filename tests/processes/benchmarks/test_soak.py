"""Clients that vanish in the middle of bodies harm nobody. Speed is not judged."""

import pytest

import soak
from peer.work import Work

SHORT = soak.Plan(
    seconds=2.5,
    work=Work(rows=4096, dim=64, table_rows=20_000),
    steady=1,
    cut=1,
    cut_period_s=0.1,
    memory_period_s=0.5,
)
MOST_GROWTH_MIB = 64.0
"""Room that an allocator may take for bodies in flight. Ten minutes of it judge growth."""


@pytest.mark.processes
def test_clients_that_vanish_leave_no_push_undone_and_no_memory_taken() -> None:
    found = soak.measure(SHORT)

    summary = found["summary"]
    assert summary["wrong_rows"] == 0
    assert summary["cuts"]
    assert summary["health_answers"]
    pserver = found["rows"][0]
    assert pserver["process"] == "pserver"
    assert pserver["MiB at last"] - pserver["MiB after the warm-up"] < MOST_GROWTH_MIB
