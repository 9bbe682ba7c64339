"""Errors of copies of a group: of who follows, and of a handover; a part of ``served``."""

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError
from paramfleet_shared.errors.logs import OtherTermError

__all__ = [
    "CopyDamagedError",
    "FeedOverError",
    "FollowAgainError",
    "HandoverError",
    "MovedError",
    "NobodyTakesOverError",
    "NotExpectedError",
    "NotMovableError",
    "NotWholeError",
    "PlanChangedError",
    "TooManyFollowersError",
    "TooManyReadersError",
]


class FollowAgainError(UnavailableError):
    """An owner can't go on sending commands to a follower; it begins with a new snapshot."""

    code = "unavailable.follow_again"
    follower: str
    reason: str
    sentence = "follower {follower} can't continue: {reason}; begin with a new snapshot"


class NotExpectedError(UnavailableError):
    """A process asked an owner for what the plan doesn't give to it, as the owner knows it."""

    code = "unavailable.not_expected"
    follower: str
    reason: str
    sentence = "process {follower} is refused: {reason}; ask again when the plan says so"


class TooManyFollowersError(UnavailableError):
    """A group has as many followers as it takes."""

    code = "unavailable.too_many_followers"
    limit: int
    sentence = "{limit} processes follow this group, the maximum: wait until one has ended"


class MovedError(OtherTermError):
    """A pserver's part is another process's now, or about to be; nothing was done."""

    code = "unavailable.moved"
    sentence = (
        "incarnation {term} of pserver {index} executes nothing more, because another process "
        "took over: read the placement again"
    )


class NotMovableError(ContractError):
    """A training has something that nobody else could go on with."""

    code = "contract.not_movable"
    what: str
    sentence = (
        "{what} can't be used with replicas, which don't contain it: train without it, or "
        "without replicas"
    )


class HandoverError(UnavailableError):
    """A group wasn't handed over; its owner goes on."""

    code = "unavailable.handover"
    reason: str
    sentence = "the group wasn't handed over: {reason}; try again"


class PlanChangedError(UnavailableError):
    """What this process was doing about a group isn't to be done any more."""

    code = "unavailable.plan_changed"
    group: int
    sentence = "the plan of group {group} has changed; what was begun for it was cancelled"


class NobodyTakesOverError(UnavailableError):
    """A process that is to end has groups, and no other process is there to take them."""

    code = "unavailable.nobody_takes_over"
    sentence = "there is no other pserver that could take the groups"


class NotWholeError(UnavailableError):
    """A follower hasn't all that it needs to go on as the owner."""

    code = "unavailable.not_whole"
    reason: str
    sentence = "the training can't continue with this copy of the group: {reason}"


class CopyDamagedError(IntegrityError):
    """A follower could not execute what the owner has executed."""

    code = "integrity.copy_damaged"
    position: int
    reason: str
    sentence = (
        "command {position} of the owner can't be executed here: {reason}; begin with a new "
        "snapshot, and see that all pservers run the same version with enough memory"
    )


class FeedOverError(UnavailableError):
    """A pserver can't say any more what changed since a reader asked last."""

    code = "unavailable.feed_over"
    reader: str
    reason: str
    sentence = "reader {reader} can't continue with its changes: {reason}; read all rows again"


class TooManyReadersError(UnavailableError):
    """As many processes read a pserver's changes as it lets."""

    code = "unavailable.too_many_readers"
    limit: int
    sentence = (
        "{limit} readers have this pserver's changes, the maximum: wait until one has ended"
    )
