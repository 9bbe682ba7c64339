"""What pservers have taken, compared."""

from typing import Any

from paramfleet.session.checkpoint.cuts import judge


def answer(*taken: list[Any], lives: Any = ((1, 2),), unfinished: Any = ()) -> dict[str, Any]:
    return {"taken": [*taken], "incarnations": [*lives], "unfinished": [*unfinished]}


def test_pservers_that_have_the_same_pushes_agree() -> None:
    verdict = judge([answer([1, 2, 5, [7], []]), answer([1, 2, 5, [7], []])])

    assert verdict.agree
    assert not verdict.reason
    assert verdict.targets == [[1, 2, 7]]


def test_what_one_lacks_is_named_and_let_through() -> None:
    verdict = judge([answer([1, 2, 6, [], []]), answer([1, 2, 5, [], []])])

    assert not verdict.agree
    assert not verdict.hopeless
    assert verdict.targets == [[1, 2, 5]]
    assert verdict.reason == ("pserver 1 lacks push 5 of worker 1, which pserver 0 has")


def test_a_pserver_that_has_nothing_of_a_worker_lacks_its_first_push() -> None:
    verdict = judge([answer(), answer([1, 2, 1, [3], []])])

    assert "pserver 0 lacks push 3 of worker 1" in verdict.reason
    assert verdict.targets == [[1, 2, 3]]


def test_as_many_but_other_pushes_are_a_difference() -> None:
    verdict = judge([answer([1, 2, 2, [3], []]), answer([1, 2, 3, [], []])])

    assert not verdict.agree
    assert verdict.targets == [[1, 2, 3]]


def test_what_a_former_process_did_not_send_to_all_will_not_come() -> None:
    lacking = answer([1, 2, 5, [], []], lives=[(1, 3)])
    verdict = judge([lacking, answer([1, 2, 6, [], []], lives=[(1, 3)])])

    assert verdict.hopeless
    assert "whose process 2 is gone" in verdict.reason


def test_a_push_that_one_pserver_refused_for_good_will_not_come() -> None:
    verdict = judge([answer([1, 2, 5, [], []]), answer([1, 2, 5, [], [4]])])
    later = judge([answer([1, 2, 2, [], []]), answer([1, 2, 5, [], [4]])])
    alike = judge([answer([1, 2, 5, [], [4]]), answer([1, 2, 5, [], [4]])])

    assert (verdict.agree, verdict.hopeless) == (False, True)
    assert verdict.reason == "pserver 1 refused push 4 of worker 1, which pserver 0 has"
    assert (later.agree, later.hopeless) == (False, False), "it is on its way"
    assert alike.agree


def test_an_exchange_that_has_begun_is_waited_for_unless_its_worker_is_lost() -> None:
    running = judge([answer(), answer(unfinished=[(1, 2)])])
    lost = judge([answer(), answer(unfinished=[(1, 2)], lives=[(1, 3)])])

    assert (running.agree, running.hopeless) == (False, False)
    assert running.reason == "worker 1 is in the middle of an exchange"
    assert (lost.agree, lost.hopeless) == (False, True)
    assert lost.reason == "worker 1 was lost in the middle of an exchange"
