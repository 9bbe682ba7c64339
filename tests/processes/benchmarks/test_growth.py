"""The suite of growth runs over every axis. Speed is not judged."""

import pytest

import growth

SMALL = growth.Axes(
    rows=(500, 1000), servers=(1,), workers=(1, 2), dim=(4, 8), step_rows=64, steps=2
)


@pytest.mark.processes
@pytest.mark.forked
def test_every_axis_has_its_values() -> None:
    found = growth.measure(budget_s=0.0, axes=SMALL)

    assert [(row["grows"], row["to"]) for row in found["rows"]] == [
        *(("rows", 500), ("rows", 1000), ("dim", 4), ("dim", 8)),
        *(("servers", 1), ("workers", 1), ("workers", 2)),
    ]
    assert all(row["steps/s"].least > 0 for row in found["rows"])
    assert set(found["summary"]) == set(growth.GROWTHS.values())
    spread = found["details"]["spread"]
    assert set(spread) == set(growth.GROWTHS.values()) - {growth.GROWTHS["servers"]}
    assert all(least > 0 for _median, least, _most in spread.values())
