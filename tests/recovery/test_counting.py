"""Which copies an owner waits for while it doesn't know what the registry names."""

from tests.recovery.protocol import CopyName
from tests.recovery.servers.counting import Counting

DISK = CopyName("disk", 0, 1)
FOLLOWER = CopyName("memory", 1, 1, 1)


def followed() -> Counting:
    """Return what the owner of a disk knows that has begun to count a follower."""
    counting = Counting(frozenset(), floor=0)
    counting.registered = frozenset({DISK})
    counting.count(FOLLOWER, 5)
    return counting


def test_who_was_proposed_counts_until_the_set_without_it_is_written() -> None:
    counting = followed()
    counting.propose(frozenset({DISK, FOLLOWER}))

    counting.drop(FOLLOWER, forgets=False)
    assert counting.positions == {FOLLOWER: 5}
    assert not counting.wanted()

    counting.written(counting.propose(frozenset({DISK})))
    assert not counting.positions


def test_an_outcome_that_comes_late_doesnt_end_what_was_proposed_since() -> None:
    counting = followed()
    first = counting.propose(frozenset({DISK}))
    counting.propose(frozenset({DISK, FOLLOWER}))
    counting.drop(FOLLOWER, forgets=False)

    counting.written(first)

    assert counting.positions == {FOLLOWER: 5}


def test_what_an_older_term_may_have_written_counts_until_there_is_an_outcome() -> None:
    counting = followed()
    counting.propose(frozenset({DISK, FOLLOWER}))
    counting.begin_term()
    counting.drop(FOLLOWER, forgets=False)
    assert counting.positions == {FOLLOWER: 5}
    assert not counting.is_settled

    counting.written(counting.propose(frozenset({DISK})))

    assert not counting.positions
    assert counting.is_settled
