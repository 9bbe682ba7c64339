"""The comparison with peers runs, and every system computes the same. Speed is not judged."""

import pytest

import path
from peer.work import Work

SMALL = Work(rows=64, dim=16, table_rows=2000)


@pytest.mark.processes
def test_every_system_that_is_there_ends_with_the_same_table() -> None:
    found = path.measure(budget_s=0.0, work=SMALL, steps=6)  # raises if a table is wrong

    missing = set(found["details"]["missing"])
    cases = {(row["system"], row["in flight"]) for row in found["rows"]}
    assert cases >= {("ours", 1), ("ours", 4), ("redis", 1), ("limits", "table")}
    assert {system for system, _ in cases} == {*path.DEPTHS, path.LIMITS} - missing
    for system in path.PEERS:
        for name in (f"path_vs_{system}", f"path_vs_{system}_one_in_flight"):
            ratio = found["summary"][name]
            assert ratio is None if system in missing else ratio and ratio > 0
    assert found["summary"]["path_vs_limits"]
    assert found["details"]["settings"]["ours"]["MALLOC_MMAP_THRESHOLD_"]
