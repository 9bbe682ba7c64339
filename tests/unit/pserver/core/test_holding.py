"""Which pushes are let through while a checkpoint is written."""

from paramfleet_pserver.core.holding import PushHold

PUSH = [("rows", 7), ("flat", 7)]


def held(**targets: int) -> PushHold:
    hold = PushHold()
    found = {(1, 2, table): last for table, last in targets.items()}
    hold.begin("a", now=10.0, until=40.0, targets=found)
    return hold


def test_without_a_hold_every_push_passes() -> None:
    hold = PushHold()

    assert not hold.is_held
    assert hold.admits(1, 2, PUSH)
    assert hold.end("", now=1.0) == hold.end("a", now=1.0) == 0.0
    assert not hold.begin_save("")
    assert not hold.expire(now=1e9)


def test_a_push_up_to_its_target_passes_and_a_later_one_does_not() -> None:
    hold = held(rows=7)

    assert hold.admits(1, 2, PUSH)
    assert hold.admits(1, 2, [("rows", 6)])
    assert not hold.admits(1, 2, [("rows", 8), ("flat", 8)])
    assert not hold.admits(1, 3, PUSH)
    assert not hold.admits(0, 2, PUSH)


def test_what_ends_an_exchange_passes() -> None:
    hold = held()
    hold.note(1, 2, continues=True)
    assert hold.unfinished() == [(1, 2)]
    assert hold.admits(1, 2, PUSH)
    assert not hold.admits(1, 3, PUSH)

    hold.note(1, 2, continues=False)
    assert hold.unfinished() == []
    assert not hold.admits(1, 2, PUSH)


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
    hold.begin("a", now=20.0, until=50.0, targets={(1, 2, "rows"): 7})

    assert hold.admits(1, 2, PUSH)
    assert not hold.expire(now=45.0)
    assert hold.end("a", now=50.0) == 40.0
    assert hold.num_holds == 1
