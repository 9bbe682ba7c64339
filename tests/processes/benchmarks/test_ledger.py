"""Training, exporter and server are killed: the stream and what is served stay right."""

from pathlib import Path

import pytest

import ledger

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

SHORT = ledger.Plan(
    days=14,
    samples=8000,
    kills=("job", "exporter", "server"),
    changes=2,
    base_changes=6,
)


def test_no_change_is_lost_doubled_stale_or_out_of_order_whoever_is_killed(
    tmp_path: Path,
) -> None:
    found = ledger.measure(SHORT, tmp_path)

    assert found.faults == []
    assert found.kills == {"job": 1, "exporter": 1, "server": 1}
    assert found.streams >= 3  # the first one, the resumed training's, the new exporter's
    assert found.changes >= 6
    assert found.answers > 10
    assert len(found.rolled_back) > 1
