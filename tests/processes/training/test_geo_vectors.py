"""GEO's arithmetic by the numbers it is defined by, through real processes."""

from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "geo_vectors.py"


@pytest.mark.parametrize("kind", ["dense", "row"])
def test_two_workers_push_half_of_their_way_and_hear_the_other(jobs: Any, kind: str) -> None:
    first, second = jobs.run(SCRIPT, "--kind", kind).results

    assert second["served"][0] == pytest.approx(1.3), "worker 1 pushed 0.3 of its 0.6"
    assert second["current"][0] == pytest.approx(1.6)
    assert first["served"][0] == pytest.approx(1.5), "worker 0 pushed 0.2 of its 0.4"
    assert first["current"][0] == pytest.approx(1.7), "and heard the 0.3"
    assert first["served"][1] == pytest.approx(1.6), "it had agreed on 1.5: 0.1 came next"
    assert first["served"][2] == pytest.approx(1.65), "then 0.05"
    assert first["current"][1:3] == pytest.approx([1.7, 1.7])
    ends = [r[where][-1] for r in (first, second) for where in ("current", "served")]
    assert [*ends, first["last"], second["last"]] == pytest.approx([2.0] * 6, abs=1e-5)


@pytest.mark.parametrize("kind", ["dense", "row"])
def test_one_worker_is_local_training(jobs: Any, kind: str) -> None:
    alone = jobs.local(SCRIPT, "--kind", kind)

    (result,) = jobs.run(SCRIPT, "--kind", kind, workers=1).results

    for said in ("current", "served", "last"):
        assert result[said] == pytest.approx(alone[said], abs=1e-6)
    assert result["current"] == pytest.approx([1.4] * 4)
