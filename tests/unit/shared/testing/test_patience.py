from paramfleet_shared.testing.patience import Patience


def test_a_wait_lasts_as_long_as_there_is_progress_up_to_the_most() -> None:
    patience = Patience(still_s=10.0, most_s=100.0, now=0.0)

    said = [patience.look(step, now=9.0 * step) for step in range(12)]

    assert said == [""] * 12
    assert patience.look(12, now=108.0) == "waited 108 s, with progress that did not end"


def test_a_wait_is_over_when_nothing_has_moved_for_long_known_or_not() -> None:
    patience = Patience(still_s=10.0, most_s=100.0, now=0.0)

    assert patience.look("a", now=9.0) == ""
    assert patience.look(None, now=14.0) == ""
    assert patience.look("a", now=19.0) == ""
    assert patience.look("a", now=19.5) == "waited 10 s without progress"
