"""The comparison with peers runs, and every system computes the same. Speed is not judged."""

import pytest

import path
from path_figures import LIMITS, PEERS
from peer.work import Work

SMALL = Work(rows=64, dim=16, table_rows=2000)


@pytest.mark.processes
@pytest.mark.forked
@pytest.mark.slow_machine
def test_every_system_that_is_there_ends_with_the_same_table() -> None:
    found = path.measure(budget_s=0.0, work=SMALL, steps=6)  # raises if a table is wrong

    missing = set(found["details"]["missing"])
    cases = {(row["system"], row["in flight"]) for row in found["rows"]}
    assert cases >= {("ours", 1), ("ours_tcp", 4), ("redis", 1), ("limits", "table")}
    assert {system for system, _ in cases} == {*path.DEPTHS, LIMITS} - missing
    spread = found["details"]["spread"]
    for system in PEERS:
        for suffix in ("", "_one_in_flight", "_cpu", "_tcp", "_tcp_one_in_flight", "_tcp_cpu"):
            name = f"path_vs_{system}{suffix}"
            assert found["summary"][name] is None, "no headline is of one round"
            assert name not in spread if system in missing else spread[name][1] > 0
    assert spread["path_vs_limits"][1] > 0
    assert "path_vs_limits" in found["details"]["refused"]
    assert found["details"]["settings"]["ours"]["MALLOC_MMAP_THRESHOLD_"]
