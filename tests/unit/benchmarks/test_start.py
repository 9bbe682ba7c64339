"""What is made of the notes of first steps."""

from start import first_step_of


def test_a_job_has_started_when_its_last_worker_has_ended_a_step() -> None:
    assert first_step_of({"first-0": "1.5", "first-1": "2.5", "first-2": "9"}, 2) == 2.5


def test_a_worker_without_a_step_has_none() -> None:
    assert first_step_of({"first-1": "2.5"}, 2) is None
