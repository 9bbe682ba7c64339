"""What is made of the notes of a recovery."""

import pytest

from recovery import PARTS, kill_of

NOTES = [
    {"event": "began", "at": 10.5, "pid": 7},
    {"event": "imported", "at": 12.0, "cpu_s": 1.25},
    {"event": "job.joined", "at": 12.75, "cpu_s": 1.5},
    {"event": "pserver.recovered", "at": 13.5, "seconds": 0.5, "bytes_since_snapshot": 2e6},
    {"event": "pserver.serving", "at": 13.5, "cpu_s": 2.0},
]


def test_the_parts_of_a_recovery_are_its_time_without_the_longer_wait() -> None:
    found = kill_of(10.0, 0.25, NOTES, steps=[13.75, 14.0])

    assert found.total_s == pytest.approx(3.75)
    assert list(found.parts) == list(PARTS)
    assert list(found.parts.values()) == [0.25, 1.5, 0.75, 0.5, 0.25, 0.5]
    assert sum(found.parts.values()) == pytest.approx(found.total_s)
    assert (found.replayed_mb, found.imports_cpu_s, found.open_cpu_s) == (2.0, 1.25, 2.0)
