"""What is made of the notes of moves."""

from moving import pauses_of


def test_a_pause_is_from_a_fence_to_the_next_that_serves() -> None:
    assert pauses_of([1.0, 2.0], [0.5, 1.25, 2.5]) == [0.25, 0.5]


def test_a_fence_after_which_nobody_has_served_as_yet_is_left_out() -> None:
    assert pauses_of([1.0, 2.0], [1.5]) == [0.5]
