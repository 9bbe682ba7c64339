"""A job for as many members as come."""

import pytest

from paramfleet_coordinator.core.gathering import AWAY_S, Gathering
from paramfleet_shared.discovery.records import JobSizes

SETTLE_S = 5.0


def gathering(*, workers: int = 0, servers: int = 0, shards: int = 8) -> Gathering:
    sizes = JobSizes(worker_num=workers, server_num=servers, num_shards=shards)
    return Gathering(sizes, settle_s=SETTLE_S)


def settle(made: Gathering, *, now: float) -> JobSizes:
    made.sizes = made.settled(now=now)
    return made.sizes


def test_sizes_that_were_said_need_nobody() -> None:
    made = gathering(workers=2, servers=1)

    assert made.knows_enough("worker")
    assert made.knows_enough("pserver")
    assert settle(made, now=0.0) == JobSizes(worker_num=2, server_num=1, num_shards=8)


def test_a_role_is_complete_when_nobody_has_come_for_a_while() -> None:
    made = gathering(workers=1)
    made.arrive("pserver", "a", now=0.0)
    made.arrive("pserver", "b", now=4.0)

    assert settle(made, now=8.9).server_num == 0
    assert not made.knows_enough("pserver")
    assert settle(made, now=9.0).server_num == 2
    assert made.knows_enough("pserver")


def test_workers_wait_for_the_number_of_pservers_too() -> None:
    made = gathering()
    made.arrive("worker", "w", now=0.0)

    assert made.open_roles(now=0.0) == {"worker": 1, "pserver": 0}
    assert settle(made, now=SETTLE_S).worker_num == 1
    assert made.open_roles(now=SETTLE_S) == {"pserver": 0}
    assert not made.knows_enough("worker")

    made.arrive("pserver", "p", now=6.0)
    settle(made, now=6.0 + SETTLE_S)

    assert made.knows_enough("worker")


def test_nobody_is_not_a_number() -> None:
    made = gathering()

    assert settle(made, now=1000.0) == JobSizes(worker_num=0, server_num=0, num_shards=8)


def test_asking_again_is_not_coming_again() -> None:
    made = gathering(servers=1)
    made.arrive("worker", "a", now=0.0)
    made.go("worker", "a", now=4.0)
    made.arrive("worker", "a", now=4.5)

    assert settle(made, now=SETTLE_S).worker_num == 1


@pytest.mark.parametrize(("away_s", "num"), [(AWAY_S - 0.1, 2), (AWAY_S, 1)])
def test_who_stays_away_does_not_count(away_s: float, num: int) -> None:
    made = gathering(servers=1)
    made.arrive("worker", "a", now=0.0)
    made.arrive("worker", "b", now=0.0)
    made.go("worker", "b", now=10.0 - away_s)

    assert settle(made, now=10.0).worker_num == num


def test_every_pserver_has_a_shard() -> None:
    made = gathering(workers=1, shards=2)
    for name in ("a", "b", "c"):
        made.arrive("pserver", name, now=0.0)

    assert settle(made, now=SETTLE_S) == JobSizes(worker_num=1, server_num=3, num_shards=3)


def test_an_unknown_role_is_judged_elsewhere() -> None:
    made = gathering()
    made.arrive("captain", "c", now=0.0)

    assert made.knows_enough("captain")
