"""Which rows stay in memory: simulated batches whose ids are drawn by Zipf's law."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.admission import ClockPolicy, SecondTouch, TinyLfu

ROWS, CAPACITY, DRAWS, BATCHES = 100_000, 10_000, 4_000, 160


def batches(exponent: float) -> Iterator[NDArray[np.int64]]:
    """Yield each batch's ids, each once: rank 0 is drawn most often."""
    rng = np.random.default_rng(3)
    weights = np.cumsum(np.arange(1, ROWS + 1) ** -exponent)
    for _ in range(BATCHES):
        yield np.unique(np.searchsorted(weights, rng.random(DRAWS) * weights[-1]))


def missed_share(policy: ClockPolicy, exponent: float) -> float:
    """Return which part of the unique ids isn't in memory, in the later half of the batches."""
    slot_of = np.full(ROWS, -1)
    keys_at = np.zeros(CAPACITY, np.uint64)
    used, seen, missed = 0, 0, 0
    for number, ids in enumerate(batches(exponent)):
        keys, slots = ids.astype(np.uint64), slot_of[ids]
        policy.touch(keys, slots)
        away = slots < 0
        if number >= BATCHES // 2:
            seen, missed = seen + ids.size, missed + int(away.sum())
        decision = policy.decide(keys[away], keys_at)
        slot_of[keys_at[decision.victims].astype(np.int64)] = -1
        new = ids[away][decision.admitted]
        free = np.arange(used, min(CAPACITY, used + new.size - decision.victims.size))
        used += free.size
        taken = np.concatenate([decision.victims, free])
        assert taken.size == new.size
        slot_of[new], keys_at[taken] = taken, new
        policy.place(taken)
        assert policy.num_live == used <= CAPACITY
        live = np.flatnonzero(slot_of >= 0)
        assert live.size == used
    return missed / seen


@pytest.mark.parametrize("exponent", [1.05, 1.2])
def test_few_rows_are_missed_where_rare_ones_get_no_place(exponent: float) -> None:
    shares = {
        kind.__name__: missed_share(kind(CAPACITY), exponent)
        for kind in (ClockPolicy, SecondTouch, TinyLfu)
    }
    hottest = float(
        np.mean(np.concatenate(list(batches(exponent))[BATCHES // 2 :]) >= CAPACITY)
    )

    assert hottest < shares["TinyLfu"] < 0.93 * shares["ClockPolicy"], shares
    assert hottest < shares["SecondTouch"] < 0.96 * shares["ClockPolicy"], shares


def test_a_clock_spares_what_was_used() -> None:
    clock = ClockPolicy(3)
    keys = np.arange(3, dtype=np.uint64)
    clock.place(np.arange(3))
    clock.touch(keys, np.array([0, -1, 2]))

    decision = clock.decide(np.array([7], np.uint64), keys)

    assert decision.admitted.tolist() == [True]
    assert decision.victims.tolist() == [1]
    clock.place(decision.victims)
    clock.free(np.array([0]))
    assert clock.decide(np.array([8], np.uint64), keys).victims.size == 0


def test_a_batch_may_miss_more_than_there_are_slots() -> None:
    for policy in (ClockPolicy(2), TinyLfu(2)):
        keys = np.arange(5, dtype=np.uint64)
        policy.place(np.arange(2))
        policy.touch(keys, np.full(5, -1))

        decision = policy.decide(keys, keys)

        assert decision.admitted.sum() == decision.victims.size <= 2


def test_a_row_gets_a_place_at_its_second_miss() -> None:
    policy = SecondTouch(4)
    keys = np.arange(10, 16, dtype=np.uint64)

    first = policy.decide(keys, keys)
    policy.place(np.arange(4))
    second = policy.decide(keys[3:], keys)

    assert first.admitted.tolist() == [True] * 4 + [False] * 2
    assert second.admitted.tolist() == [False, True, True]
    assert second.victims.size == 2


def test_what_is_used_more_often_stays() -> None:
    policy = TinyLfu(1)
    keys = np.array([1], np.uint64)
    policy.place(np.zeros(1, np.int64))
    for _ in range(3):
        policy.touch(keys, np.zeros(1, np.int64))
    other = np.array([2], np.uint64)

    decided = []
    for _ in range(5):
        policy.touch(other, np.array([-1]))
        decided.append(bool(policy.decide(other, keys).admitted[0]))
        if decided[-1]:
            break

    assert decided[-1]
    assert len(decided) > 1
