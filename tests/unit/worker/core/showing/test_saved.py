"""Which checkpoint a job has written last."""

from typing import Any

import pytest

from paramfleet_worker.core.showing.saved import Saved, saved_of


def test_it_is_the_one_that_the_first_worker_has_published() -> None:
    workers = {0: {"step": 12, "saved": {"folder": "/saved/1-step-10", "step": 10}}, 1: {}}

    assert saved_of(workers) == Saved("/saved/1-step-10", 10)
    assert saved_of({0: {"saved": {"folder": "/a b"}}}) == Saved("/a b", None)


@pytest.mark.parametrize(
    "facts",
    [{}, {"saved": None}, {"saved": "/x"}, {"saved": {"step": 3}}, {"saved": {"folder": 1}}],
)
def test_what_says_nothing_of_one_is_none(facts: dict[str, Any]) -> None:
    assert saved_of({0: facts}) is None
    assert saved_of({}) is None
    assert saved_of({1: {"saved": {"folder": "/x", "step": 1}}}) is None
