"""What is reported durable is in every copy that the registry may name."""

from collections.abc import Collection, Mapping

import hypothesis.strategies as st
from hypothesis import given, settings

from paramfleet_pserver.durability.copies.registered import DISK, Copies, Proposal


def replicated() -> Copies:
    return Copies(replicated=True, has_disk=False, grace_s=10.0)


def durable(copies: Copies, position: int, disk: int = 0, now: float = 0.0) -> int:
    return copies.durable(position=position, disk=disk, now=now)


def proposed(copies: Copies, *, disk: int, now: float) -> frozenset[str] | None:
    proposal = copies.proposal(disk=disk, now=now)
    return None if proposal is None else proposal.copies


def write(copies: Copies, ids: Collection[str], *, disk: int = 9, now: float) -> None:
    """Have the registry name these, as is proposed."""
    proposal = copies.proposal(disk=disk, now=now)
    assert proposal is not None
    assert proposal.copies == frozenset(ids)
    copies.written(proposal.number, now=now)


def test_a_disk_alone_is_what_is_durable() -> None:
    copies = Copies(replicated=False, has_disk=True)

    assert copies.reports
    assert durable(copies, 9, disk=5) == 5
    assert proposed(copies, disk=5, now=0.0) is None


def test_without_disk_and_followers_nothing_is_reported() -> None:
    assert not Copies(replicated=False, has_disk=False).reports


def test_a_follower_is_counted_before_it_is_registered() -> None:
    copies = Copies(replicated=True, has_disk=True)
    copies.count("a", 3)

    assert durable(copies, 9, disk=8) == 3
    assert proposed(copies, disk=8, now=0.0) == frozenset({DISK, "a"})


def test_a_follower_that_lacks_what_was_reported_is_not_registered() -> None:
    copies = Copies(replicated=True, has_disk=True)
    assert durable(copies, 9, disk=8) == 8
    copies.count("a", 3)

    assert proposed(copies, disk=8, now=0.0) is None
    assert durable(copies, 9, disk=9) == 8
    copies.count("a", 8)
    assert proposed(copies, disk=9, now=0.0) == frozenset({DISK, "a"})


def test_nothing_is_durable_before_the_first_follower_is_registered() -> None:
    copies = replicated()
    copies.count("a", 5)

    assert durable(copies, 9) == 0
    write(copies, {"a"}, now=1.0)
    assert durable(copies, 9) == 5


def test_a_follower_that_is_dropped_counts_until_the_registry_names_it_no_more() -> None:
    copies = replicated()
    copies.count("a", 5)
    write(copies, {"a"}, now=0.0)
    copies.count("b", 4)
    copies.drop("a")

    assert durable(copies, 9) == 4
    assert proposed(copies, disk=0, now=0.0) == frozenset({"b"})
    copies.count("b", 9)
    assert durable(copies, 9) == 5
    write(copies, {"b"}, now=0.0)
    assert durable(copies, 9) == 9


def test_a_group_without_a_copy_waits_for_one_and_goes_on_unprotected() -> None:
    copies = replicated()
    copies.count("a", 5)
    write(copies, {"a"}, now=0.0)
    copies.drop("a")
    assert proposed(copies, disk=0, now=20.0) == frozenset()
    write(copies, (), now=20.0)

    assert durable(copies, 9, now=29.0) == 0
    assert not copies.is_unprotected(29.0)
    assert durable(copies, 9, now=30.0) == 9
    assert copies.is_unprotected(30.0)


def test_a_new_owner_reports_nothing_before_its_own_copies_are_registered() -> None:
    copies = replicated()
    copies.inherit({"a", DISK}, position=7, now=0.0)
    copies.count("b", 6)

    assert durable(copies, 9, now=5.0) == 0
    assert proposed(copies, disk=0, now=5.0) is None
    copies.count("b", 7)
    assert proposed(copies, disk=0, now=5.0) == frozenset({"b"})
    write(copies, {"b"}, now=5.0)
    assert durable(copies, 9, now=5.0) == 7


def test_inherited_copies_go_when_nobody_follows_in_time() -> None:
    copies = replicated()
    copies.inherit({"a"}, position=7, now=0.0)

    assert proposed(copies, disk=0, now=9.9) is None
    assert proposed(copies, disk=0, now=10.0) == frozenset()
    write(copies, (), now=10.0)
    assert durable(copies, 9, now=10.0) == 9


def test_a_new_owner_is_unprotected_only_when_that_is_written() -> None:
    copies = replicated()
    copies.inherit((), position=7, now=0.0)  # the registry may name more than was read

    assert durable(copies, 9, now=10.0) == 0
    assert not copies.is_unprotected(10.0)
    assert proposed(copies, disk=0, now=10.0) == frozenset()
    write(copies, (), now=10.0)
    assert durable(copies, 9, now=10.0) == 9


def test_a_group_that_reports_nothing_is_gone_on_with_at_once() -> None:
    copies = Copies(replicated=False, has_disk=False)
    copies.inherit((), position=7, now=0.0)

    assert proposed(copies, disk=0, now=0.0) is None
    assert copies.is_unprotected(0.0)


def test_a_new_owner_with_a_disk_waits_for_it() -> None:
    copies = Copies(replicated=False, has_disk=False, awaits_disk=True)
    copies.inherit({DISK}, position=7, now=0.0)

    assert durable(copies, 9, disk=9, now=99.0) == 0
    assert proposed(copies, disk=9, now=99.0) is None
    copies.add_disk()
    assert proposed(copies, disk=9, now=99.0) == frozenset({DISK})
    write(copies, {DISK}, now=99.0)
    assert durable(copies, 9, disk=9, now=99.0) == 9


def test_memory_takes_the_place_of_a_disk_only_where_none_comes_in_time() -> None:
    """All processes may die, and a disk outlives them."""
    copies = Copies(replicated=True, has_disk=False, awaits_disk=True, grace_s=10.0)
    copies.inherit({"a", DISK}, position=7, now=0.0)
    copies.count("b", 7)

    assert proposed(copies, disk=0, now=9.9) is None
    assert durable(copies, 9, now=9.9) == 0
    assert proposed(copies, disk=0, now=10.0) == frozenset({"b"})


def test_the_own_disk_takes_the_place_of_an_inherited_one_with_the_followers() -> None:
    copies = Copies(replicated=True, has_disk=False, awaits_disk=True, grace_s=10.0)
    copies.inherit({"a", DISK}, position=7, now=0.0)
    copies.count("b", 7)
    copies.add_disk()

    assert proposed(copies, disk=6, now=1.0) is None
    assert proposed(copies, disk=7, now=1.0) == frozenset({"b", DISK})


def test_memory_takes_the_place_of_memory_at_once() -> None:
    copies = Copies(replicated=True, has_disk=False, awaits_disk=True, grace_s=10.0)
    copies.inherit({"a"}, position=7, now=0.0)
    copies.count("b", 7)

    assert proposed(copies, disk=0, now=0.0) == frozenset({"b"})


def test_each_set_has_a_number_and_one_that_is_sent_again_keeps_it() -> None:
    copies = Copies(replicated=True, has_disk=True)
    copies.count("a", 5)
    first = copies.proposal(disk=5, now=0.0)
    assert first is not None
    assert copies.proposal(disk=5, now=0.0) == first
    copies.drop("a")
    second = copies.proposal(disk=5, now=0.0)
    assert second == Proposal(first.number + 1, frozenset({DISK}))  # the first may be written

    assert durable(copies, 9, disk=9) == 5
    copies.written(first.number, now=0.0)  # and was
    assert durable(copies, 9, disk=9) == 5
    copies.written(second.number, now=0.0)
    assert durable(copies, 9, disk=9) == 9
    copies.written(first.number, now=0.0)  # late: a newer one is there
    assert copies.registered == {DISK}


def test_a_removal_whose_outcome_is_unknown_is_taken_back_under_a_number() -> None:
    copies = Copies(replicated=True, has_disk=True)
    copies.count("a", 5)
    write(copies, {DISK, "a"}, now=0.0)
    copies.drop("a")
    removal = copies.proposal(disk=5, now=0.0)
    assert removal is not None
    copies.count("a", 5)

    again = copies.proposal(disk=5, now=0.0)

    assert again == Proposal(removal.number + 1, frozenset({DISK, "a"}))


class Registry:
    """Takes proposals late, twice, or without an answer, and refuses those that are too old."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._sent: list[Proposal] = []
        self._number = 0
        self.named = copies.registered

    def act(self, what: str, num: int, *, disk: int, now: float) -> None:
        proposal = None
        if what in {"write", "lost", "late"}:
            proposal = self._copies.proposal(disk=disk, now=now)
            self._sent += [] if proposal is None else [proposal]
        elif what == "overtaken" and self._sent:
            proposal = self._sent[num % len(self._sent)]
        if proposal is None or what == "late" or proposal.number < self._number:
            return
        self._number, self.named = proposal
        if what == "write":
            self._copies.written(proposal.number, now=now)


@given(
    facts=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "count",
                    "drop",
                    "execute",
                    "write",
                    "lost",
                    "late",
                    "overtaken",
                    "disk",
                    "wait",
                ]
            ),
            st.sampled_from("abc"),
            st.integers(0, 3),
        ),
        max_size=60,
    ),
    has_disk=st.booleans(),
)
@settings(max_examples=500)
def test_whatever_happens_the_registry_names_none_that_lacks_what_was_reported(
    *, facts: list[tuple[str, str, int]], has_disk: bool
) -> None:
    copies = Copies(replicated=True, has_disk=has_disk, grace_s=5.0)
    registry = Registry(copies)
    have: dict[str, int] = {}
    position, disk, now, reported = 0, 0, 0.0, 0
    for what, who, num in facts:
        if what == "execute":
            position += num
        elif what == "disk":
            disk = min(position, disk + num)
        elif what == "count":
            have[who] = max(have.get(who, 0), min(position, have.get(who, 0) + num))
            copies.count(who, have[who])
        elif what == "drop":
            copies.drop(who)
        elif what == "wait":
            now += num
        registry.act(what, num, disk=disk, now=now)
        at = copies.durable(position=position, disk=disk, now=now)
        assert reported <= at <= position
        reported = at
        check(registry.named, {**have, DISK: disk}, reported)


def check(registry: frozenset[str], have: Mapping[str, int], reported: int) -> None:
    for copy in registry:
        assert have[copy] >= reported, copy


def test_the_number_is_that_of_the_newest_proposal_that_is_known_to_be_written() -> None:
    copies = replicated()
    assert copies.number == 0
    copies.count("a", 0)
    first = copies.proposal(disk=0, now=0.0)
    copies.count("b", 0)
    second = copies.proposal(disk=0, now=0.0)
    assert first is not None
    assert second is not None

    copies.written(second.number, now=0.0)
    copies.written(first.number, now=0.0)

    assert (copies.number, copies.registered) == (second.number, second.copies)
