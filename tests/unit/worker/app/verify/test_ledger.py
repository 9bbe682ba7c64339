"""What the program of a run takes from answers."""

from paramfleet_worker.app.verify.ledger import Answers


def test_a_lead_is_not_measured_in_steps_that_began_before_a_recovery() -> None:
    """A step's turn is asked for at the end of the one before, where dense values come, too."""
    answers = Answers()
    ends = []
    for terms in ([1], [1, 1], [1, 2], [2], [2], [2, 3], [3], [3]):
        for term in terms:
            answers.take(3, term, (7,))
        ends.append(answers.take_new_term())

    assert ends == [False, False, True, True, False, True, True, False]


def test_a_version_may_fall_with_another_process_alone() -> None:
    answers = Answers()
    for term, version in ((1, 5), (1, 6), (2, 4), (2, 5), (2, 4)):
        answers.take(0, term, (version,))

    assert answers.fallen == ["pserver 0 term 2: 4 after 5"]
