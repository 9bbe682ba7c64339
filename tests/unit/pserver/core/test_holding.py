"""Which pushes are let through while a checkpoint is written."""

from paramfleet_pserver.core.holding import PushHold
from paramfleet_shared.net.wire.identity import ChangeIdentity

PUSH = ChangeIdentity(worker=1, incarnation=2, sequence=7)


def held(target: int = 0) -> PushHold:
    hold = PushHold()
    targets = {(1, 2): target} if target else {}
    hold.begin("a", now=10.0, until=40.0, targets=targets)
    return hold


def test_without_a_hold_every_push_passes() -> None:
    hold = PushHold()

    assert not hold.is_held
    assert hold.admits(PUSH)
    assert hold.end("", now=1.0) == hold.end("a", now=1.0) == 0.0
    assert not hold.begin_save("")
    assert not hold.expire(now=1e9)


def test_a_push_up_to_its_target_passes_and_a_later_one_does_not() -> None:
    hold = held(7)

    assert hold.admits(PUSH)
    assert hold.admits(PUSH._replace(sequence=6))
    assert not hold.admits(PUSH._replace(sequence=8))
    assert not hold.admits(PUSH._replace(incarnation=3))
    assert not hold.admits(PUSH._replace(worker=0))


def test_what_ends_an_exchange_passes() -> None:
    hold = held()
    hold.note(PUSH, continues=True)
    assert hold.unfinished() == [(1, 2)]
    assert hold.admits(PUSH)
    assert not hold.admits(PUSH._replace(incarnation=3))

    hold.note(PUSH, continues=False)
    assert hold.unfinished() == []
    assert not hold.admits(PUSH)


def test_a_hold_ends_by_itself_unless_a_save_has_begun() -> None:
    hold = held()
    assert not hold.expire(now=39.9)
    assert hold.expire(now=40.0)
    assert hold.held_s == 30.0

    hold = held()
    assert hold.begin_save("a")
    assert not hold.expire(now=1000.0)
    assert hold.end("a", now=1010.0) == 1000.0
    assert not hold.is_held


def test_a_newer_hold_replaces_one_and_the_former_save_hears_of_it() -> None:
    hold = held()
    hold.begin("b", now=12.0, until=42.0, targets={})

    assert not hold.begin_save("a")
    assert hold.end("a", now=13.0) == 0.0
    assert hold.is_held
    assert (hold.num_holds, hold.held_s) == (2, 2.0)


def test_the_same_hold_takes_new_targets_and_a_later_end() -> None:
    hold = held()
    hold.begin("a", now=20.0, until=50.0, targets={(1, 2): 7})

    assert hold.admits(PUSH)
    assert not hold.expire(now=45.0)
    assert hold.end("a", now=50.0) == 40.0
    assert hold.num_holds == 1
