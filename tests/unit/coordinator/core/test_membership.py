"""Places, silences and successors, over every state of a place."""

from collections.abc import Callable

import pytest

from paramfleet_coordinator.core.membership import Membership
from paramfleet_shared.discovery.errors import (
    FencedError,
    IndexTakenError,
    JobFullError,
    NotAMemberError,
    UnknownRoleError,
)
from paramfleet_shared.discovery.records import End, Member, Snapshot

TTL_S, RENEW_S, TICK_S = 4.0, 0.5, 0.25


def member(
    role: str = "worker", index: int = 0, incarnation: int = 1, nonce: str = "first"
) -> Member:
    return Member(
        role=role,
        index=index,
        incarnation=incarnation,
        endpoint="a:1",
        admin="",
        host="ada",
        pid=7,
        nonce=nonce,
    )


class World:
    """A membership, a registry's contents, and the time."""

    def __init__(self, **limits: int) -> None:
        self.limits = limits or {"worker": 1}
        self.members = Membership(self.limits, lease_ttl_s=TTL_S, lease_renew_s=RENEW_S)
        self.now = 100.0
        self.registered: dict[tuple[str, int], Member] = {}
        self.beats: dict[tuple[str, int], int] = {}
        self.ends: dict[tuple[str, int], End] = {}

    def look(self) -> None:
        snapshot = Snapshot(
            members=dict(self.registered), beats=dict(self.beats), ends=dict(self.ends)
        )
        self.members.observe(snapshot, now=self.now)

    def run(self, seconds: float, *alive: tuple[str, int]) -> None:
        """Let time pass in ticks; ``alive`` renew their leases."""
        for tick in range(round(seconds / TICK_S)):
            self.now += TICK_S
            if tick % 2:
                for key in alive:
                    self.beats[key] = self.beats.get(key, 0) + 1
            self.look()

    def admit(self, one: Member) -> Member:
        place = self.join(nonce=one.nonce, role=one.role, index=one.index)
        assert place is not None
        confirmed = member(one.role, one.index, one.incarnation, one.nonce)
        self.registered[one.key] = confirmed
        self.members.confirm(confirmed, now=self.now)
        self.look()
        return confirmed

    def join(
        self,
        *,
        nonce: str = "second",
        role: str = "worker",
        index: int | None = None,
        asked_at: float | None = None,
        replaceable: bool = True,
    ) -> Member | None:
        return self.members.join(
            member(role, 0, 0, nonce),
            index=index,
            asked_at=self.now if asked_at is None else asked_at,
            now=self.now,
            replaceable=replaceable,
        )


KEY = ("worker", 0)


def free() -> World:
    return World()


def reserved() -> World:
    world = World()
    world.join(nonce="first")
    return world


def alive() -> World:
    world = World()
    world.admit(member())
    world.run(2.0, KEY)
    return world


def quiet() -> World:
    world = alive()
    world.run(1.0)
    return world


def silent() -> World:
    world = alive()
    world.run(2.5)
    return world


def dead() -> World:
    world = alive()
    world.run(4.5)
    return world


def done() -> World:
    world = alive()
    world.ends[KEY] = "done"
    world.look()
    return world


def left() -> World:
    world = alive()
    world.ends[KEY] = "left"
    world.look()
    return world


def replaced() -> World:
    world = silent()
    world.join(nonce="second")
    world.registered[KEY] = member(incarnation=2, nonce="second")
    world.members.confirm(world.registered[KEY], now=world.now)
    world.look()
    return world


STATES: list[Callable[[], World]] = [
    free, reserved, alive, quiet, silent, dead, done, left, replaced,
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (free, "admitted"),
        (reserved, "wait"),
        (alive, "wait"),
        (quiet, "wait"),
        (silent, "admitted"),
        (dead, "admitted"),
        (done, "refused"),
        (left, "refused"),
        (replaced, "wait"),
    ],
)
@pytest.mark.parametrize("index", [None, 0])
def test_a_newcomer_gets_a_place_that_is_free_or_whose_holder_is_silent(
    state: Callable[[], World], expected: str, index: int | None
) -> None:
    world = state()

    if expected == "refused":
        with pytest.raises(JobFullError if index is None else IndexTakenError):
            world.join(nonce="third", index=index)
    else:
        place = world.join(nonce="third", index=index)
        assert (place is None) == (expected == "wait")
        assert place is None or (place.index, place.incarnation) == (0, 0)


@pytest.mark.parametrize("state", [s for s in STATES if s is not free])
def test_nobody_follows_on_a_member_that_may_not_be_replaced(
    state: Callable[[], World],
) -> None:
    with pytest.raises(IndexTakenError):
        state().join(nonce="third", index=0, replaceable=False)


@pytest.mark.parametrize("state", [alive, quiet, silent, dead, done, left])
def test_a_repeated_request_gets_the_place_it_got_before(state: Callable[[], World]) -> None:
    world = state()

    assert world.join(nonce="first", index=None) == world.members.places[KEY].member


def test_a_request_repeated_before_it_was_confirmed_gets_the_same_reservation() -> None:
    world = reserved()

    again = world.join(nonce="first")

    assert again is not None
    assert (again.index, again.incarnation) == (0, 0)


@pytest.mark.parametrize(
    ("state", "dies"),
    [
        (free, 0),
        (reserved, 0),
        (alive, 1),
        (quiet, 1),
        (silent, 1),
        (dead, 1),
        (done, 0),
        (left, 0),
    ],
)
def test_only_members_the_job_needs_can_die_of_silence(
    state: Callable[[], World], dies: int
) -> None:
    world = state()

    world.run(TTL_S + 1)

    assert len(world.members.dead()) == dies


@pytest.mark.parametrize("state", [s for s in STATES if s not in {free, reserved}])
def test_a_heartbeat_ends_any_silence(state: Callable[[], World]) -> None:
    world = state()

    world.run(0.5, KEY)

    assert world.members.dead() == []
    assert world.members.places[KEY].silence_s == 0.0


def test_a_live_holder_is_known_by_a_heartbeat_made_after_the_question() -> None:
    world = alive()
    asked_at = world.now

    world.run(0.25, KEY)
    early = world.join(index=0, asked_at=asked_at)
    world.run(1.0, KEY)

    assert early is None
    with pytest.raises(IndexTakenError, match="process 7 on ada"):
        world.join(index=0, asked_at=asked_at)


def test_a_full_job_refuses_one_more_once_every_holder_has_shown_itself() -> None:
    world = World(worker=2)
    world.admit(member(index=0, nonce="a"))
    world.admit(member(index=1, nonce="b"))
    asked_at = world.now
    world.run(1.5, ("worker", 0), ("worker", 1))

    with pytest.raises(JobFullError, match="2 workers"):
        world.join(asked_at=asked_at)


def test_newcomers_without_an_index_get_the_lowest_free_one() -> None:
    world = World(worker=3, pserver=1)
    world.admit(member(index=1, nonce="b"))

    first, second = world.join(nonce="a"), world.join(nonce="c")
    server = world.join(nonce="d", role="pserver")

    assert first is not None
    assert second is not None
    assert server is not None
    assert (first.index, second.index, server.index) == (0, 2, 0)


@pytest.mark.parametrize("index", [-1, 1])
def test_an_index_beyond_the_roles_places_is_refused(index: int) -> None:
    with pytest.raises(JobFullError):
        World().join(index=index)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(UnknownRoleError, match="reader"):
        World().join(role="reader")


def test_a_reservation_given_up_is_free_again() -> None:
    world = reserved()

    world.members.give_up(member(incarnation=0))

    assert world.join() is not None


def test_giving_up_does_not_remove_a_member_the_registry_knows_by_now() -> None:
    world = alive()

    world.members.give_up(member(incarnation=0))

    assert world.members.places[KEY].member.incarnation == 1


def test_a_machine_that_was_paused_judges_nobody_before_one_more_lease() -> None:
    world = quiet()

    world.now += 60.0
    world.look()
    world.run(TTL_S - TICK_S)
    before = world.members.dead()
    world.run(2 * TICK_S)

    assert before == []
    assert len(world.members.dead()) == 1


def test_a_short_time_without_looking_counts_little() -> None:
    world = alive()

    world.now += 3.5
    world.look()
    world.run(2.5)

    assert world.members.dead() == []


def test_death_is_noticed_in_less_than_5_seconds_with_the_default_times() -> None:
    world = alive()
    last_heartbeat_at = world.now

    while not world.members.dead():
        world.run(TICK_S)

    assert world.now - last_heartbeat_at + RENEW_S <= 5.0


def test_the_longest_dead_is_named_first() -> None:
    world = World(worker=3)
    for index in range(3):
        world.admit(member(index=index, nonce=str(index)))
    world.run(1.0, ("worker", 0), ("worker", 1), ("worker", 2))
    world.run(1.0, ("worker", 0), ("worker", 2))
    world.run(TTL_S + 1)

    assert [place.member.index for place in world.members.dead()] == [1, 0, 2]


def test_a_registry_that_came_back_empty_makes_nobody_dead_or_undone() -> None:
    world = World(worker=2)
    world.admit(member(index=0, nonce="a"))
    world.admit(member(index=1, nonce="b"))
    world.ends["worker", 0] = "done"
    world.run(1.0, ("worker", 0), ("worker", 1))

    world.registered, world.beats, world.ends = {}, {}, {}
    world.run(1.0)
    world.registered = {("worker", 1): member(index=1, nonce="b")}
    world.run(TTL_S, ("worker", 1))

    assert world.members.dead() == []
    assert world.members.participants(started=True) == {1}


def test_an_old_record_of_a_replaced_member_is_no_sign_of_life() -> None:
    world = replaced()

    world.registered[KEY] = member(incarnation=1)
    world.run(TTL_S + 1, KEY)

    assert [place.member.incarnation for place in world.members.dead()] == [2]


def test_barriers_wait_for_workers_that_have_not_ended_even_if_they_have_not_joined() -> None:
    world = World(worker=4, pserver=1)
    world.admit(member(index=0, nonce="a"))
    world.admit(member(index=1, nonce="b"))
    world.ends = {("worker", 0): "done"}
    world.look()

    assert world.members.participants(started=False) == {1, 2, 3}
    assert world.members.missing("worker") == [2, 3]
    assert world.members.missing("pserver") == [0]


def test_a_stranger_a_former_and_a_future_self_are_told_apart() -> None:
    world = replaced()

    assert world.members.require("worker", 0, incarnation=2).member.nonce == "second"
    with pytest.raises(FencedError, match="replaced by incarnation 2"):
        world.members.require("worker", 0, incarnation=1)
    with pytest.raises(NotAMemberError):
        world.members.require("worker", 0, incarnation=3)
    with pytest.raises(NotAMemberError):
        world.members.require("worker", 5, incarnation=1)


@pytest.mark.parametrize(
    ("state", "gone"), [(free, True), (alive, False), (dead, True), (done, False), (left, True)]
)
def test_all_are_gone_when_each_has_left_or_is_silent(
    state: Callable[[], World], gone: bool
) -> None:
    assert state().members.all_gone() == gone
