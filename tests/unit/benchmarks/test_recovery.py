"""What is made of the log of a pserver that came back."""

import json

import pytest

from recovery import PARTS, kill_of, lives_of


def line(event: str, second: float, **fields: object) -> str:
    time = f"2026-05-01T12:00:{second:06.3f}Z"
    return json.dumps({"time": time, "event": event, "fields": fields})


LOG = "\n".join(
    [
        line("job.joined", 1.5),
        line("pserver.started", 1.5, pid=7, cpu_s=2.5, seconds=0.5),
        line("pserver.serving", 2.0, cpu_s=3.0),
        "a line of the script",
        line("job.joined", 11.75),
        line("pserver.started", 11.75, pid=8, cpu_s=0.75, seconds=0.75),
        line("pserver.recovered", 12.5, seconds=0.5, bytes_since_snapshot=2e6),
        line("pserver.serving", 12.5, cpu_s=2.0),
    ]
)


def test_the_parts_of_a_recovery_are_its_time() -> None:
    first, second = lives_of(LOG)
    ten = first["pserver.started"].at + 8.5

    found = kill_of(ten, second, steps=[ten + 2.75, ten + 3.0])

    assert found.total_s == pytest.approx(3.0)
    assert list(found.parts) == list(PARTS)
    assert list(found.parts.values()) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.5])
    assert sum(found.parts.values()) == pytest.approx(found.total_s)
    assert (found.replayed_mb, found.start_cpu_s, found.open_cpu_s) == (2.0, 0.75, 2.0)
    assert second["pserver.started"].fields["pid"] == 8
