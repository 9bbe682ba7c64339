"""GEO's arithmetic by the numbers it is defined by, through real processes."""

from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "geo_vectors.py"


@pytest.mark.parametrize("kind", ["dense", "row"])
def test_two_workers_push_half_of_their_way_and_hear_the_other(jobs: Any, kind: str) -> None:
    first, second = jobs.run(SCRIPT, "--kind", kind, "--merge", "remainder").results

    assert second["served"][0] == pytest.approx(1.3), "worker 1 pushed 0.3 of its 0.6"
    assert second["current"][0] == pytest.approx(1.6)
    assert first["served"][0] == pytest.approx(1.5), "worker 0 pushed 0.2 of its 0.4"
    assert first["current"][0] == pytest.approx(1.7), "and heard the 0.3"
    assert first["served"][1] == pytest.approx(1.6), "it had agreed on 1.5: 0.1 came next"
    assert first["served"][2] == pytest.approx(1.65), "then 0.05"
    assert first["current"][1:3] == pytest.approx([1.7, 1.7])
    ends = [r[where][-1] for r in (first, second) for where in ("current", "served")]
    assert [*ends, first["last"], second["last"]] == pytest.approx([2.0] * 6, abs=1e-5)


@pytest.mark.parametrize(("merge", "power"), [("damped", 0.5), ("mean", 1.0)])
@pytest.mark.parametrize("kind", ["dense", "row"])
def test_what_both_changed_is_divided_and_both_hear_of_it(
    jobs: Any, kind: str, merge: str, power: float
) -> None:
    first, second = jobs.run(SCRIPT, "--kind", kind, "--merge", merge).results

    half = 0.5**power
    alone = 1.0 + (0.6 * half if kind == "dense" else 0.6)
    both = alone + 0.4 * half
    assert second["served"][0] == pytest.approx(alone), "nobody else had changed the row"
    assert second["current"][0] == pytest.approx(alone), "it holds what was added"
    assert first["served"][:3] == pytest.approx([both] * 3), "worker 0 moved once"
    assert first["current"][:3] == pytest.approx([both] * 3), "and holds what was added"
    ends = [r[where][-1] for r in (first, second) for where in ("current", "served")]
    assert [*ends, first["last"], second["last"]] == pytest.approx([both] * 6)


@pytest.mark.parametrize("kind", ["dense", "row"])
def test_one_worker_is_local_training(jobs: Any, kind: str) -> None:
    alone = jobs.local(SCRIPT, "--kind", kind)

    (result,) = jobs.run(SCRIPT, "--kind", kind, workers=1).results

    for said in ("current", "served", "last"):
        assert result[said] == pytest.approx(alone[said], abs=1e-6)
    assert result["current"] == pytest.approx([1.4] * 4)
