"""What is made of a window beside snapshots."""

import pytest

from durability import Step, steps_of
from jobs import Saved


def test_a_step_is_from_the_end_of_the_one_before() -> None:
    steps = steps_of({"began_at": 100.0, "ends": [[0.5, 1.0], [0.25]]})

    assert steps == [Step(100.0, 100.5), Step(100.5, 101.0), Step(100.0, 100.25)]
    assert [step.ms for step in steps] == pytest.approx([500.0, 500.0, 250.0])


@pytest.mark.parametrize(
    ("began", "ended", "meets"),
    [(1.0, 2.0, False), (1.0, 3.5, True), (3.25, 3.5, True), (4.0, 5.0, False)],
)
def test_a_step_meets_the_snapshots_that_are_taken_during_a_part_of_it(
    began: float, ended: float, meets: bool
) -> None:
    assert Step(began, ended).meets([Saved(3.0, 4.0)]) is meets
