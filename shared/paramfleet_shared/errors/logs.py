"""Errors of what a pserver keeps on its disk: its log, and snapshots; a part of ``served``."""

from paramfleet_shared.errors import (
    ContractError,
    HeldError,
    IntegrityError,
    OutcomeUnknownError,
    UnavailableError,
)

__all__ = [
    "CommandTooLargeError",
    "DataFolderError",
    "DiskFailingError",
    "DiskFullError",
    "LogBehindError",
    "LogClosedError",
    "LogDamagedError",
    "LogInUseError",
    "LogOfOtherJobError",
    "LogTermError",
    "NotDurableError",
    "OtherTermError",
    "ReplayError",
    "SnapshotDamagedError",
    "SnapshotOfOtherJobError",
    "SnapshotPlaceError",
]


class DiskFullError(UnavailableError):
    """A pserver's disk has no room for its log; nothing was changed."""

    code = "unavailable.disk_full"
    path: str
    """The log's folder."""
    reason: str
    """What the system said."""
    sentence = (
        "the log in {path} can't grow: {reason}; free space on that disk: the pserver tries "
        "again automatically"
    )


class DiskFailingError(UnavailableError):
    """A pserver's disk refuses its log; nothing was changed."""

    code = "unavailable.disk_failing"
    path: str
    """The log's folder."""
    reason: str
    """What the system said."""
    sentence = (
        "the log in {path} can't be written: {reason}; check that disk: the pserver tries "
        "again automatically"
    )


class LogBehindError(UnavailableError):
    """More commands wait for a pserver's disk than may; nothing was changed."""

    code = "unavailable.log_behind"
    path: str
    """The log's folder."""
    num_bytes: int
    """Of the command that was to be added."""
    waiting_bytes: int
    """Of those that wait."""
    limit_bytes: int
    sentence = (
        "the log in {path}: {waiting_bytes:,} bytes wait for the disk, and the limit is "
        "{limit_bytes:,}: try again soon; if this happens often, the disk is too slow for this "
        "job"
    )


class DataFolderError(ContractError):
    """A pserver can't use the folder for its training."""

    code = "contract.data_folder"
    path: str
    reason: str
    sentence = "the data folder {path} can't be used: {reason}; give one that can be written to"


class NotDurableError(OutcomeUnknownError):
    """A change is executed, and wasn't on the disk when the caller's time was over."""

    code = "outcome_unknown.not_durable"
    operation: str
    waited_s: float
    state: str
    """Of the log."""
    sentence = (
        "{operation} was executed, and {waited_s:.1f} s later it isn't durable: the log is "
        "{state}; repeat it"
    )


class OtherTermError(UnavailableError):
    """A request is for another pserver, or another process of it; nothing was done."""

    code = "unavailable.other_term"
    index: int
    """Of the pserver that was asked."""
    term: int
    """Its incarnation."""
    wanted: list[int]
    """Index and incarnation of the one that is meant."""
    sentence = (
        "this is incarnation {term} of pserver {index}, and the request is for "
        "[index, incarnation] = {wanted}: read the placement again"
    )


class LogDamagedError(IntegrityError):
    """What was on the disk for certain can't be read any more."""

    code = "integrity.log_damaged"
    path: str
    """The segment's file, or the log's folder where a segment is lacking."""
    offset: int
    """Bytes from the beginning of the file."""
    position: int
    """The first command that can't be read."""
    reason: str
    sentence = (
        "{path} is damaged at byte {offset}, from command {position} on: {reason}; restore it, "
        "or recover from another copy or a checkpoint"
    )


class LogInUseError(HeldError):
    """Another process, or another part of this one, has the log open."""

    code = "unavailable.log_in_use"
    sentence = "the log in {path} is in use by {holder}: end that one, or name another folder"


class LogOfOtherJobError(ContractError):
    """A folder holds the log of another job; it is left as it is."""

    code = "contract.log_of_other_job"
    path: str
    found: str
    job: str
    sentence = (
        "{path} holds commands of job {found!r}, and not of {job!r}: name another folder, or "
        "remove those files"
    )


class LogTermError(ContractError):
    """A log is continued with a lower term than it holds; it is left as it is."""

    code = "contract.log_term"
    path: str
    found: int
    term: int
    sentence = (
        "the log in {path} holds commands of term {found}, and was to be continued with "
        "{term}: read the registry (Redis) again"
    )


class LogClosedError(UnavailableError):
    """The log was closed before a command was durable, or before it came."""

    code = "unavailable.log_closed"
    path: str
    position: int
    """Durable position of the log."""
    sentence = "the log in {path} is closed; commands up to {position} are on the disk"


class CommandTooLargeError(ContractError):
    """A command is larger than the log takes; it isn't logged."""

    code = "contract.command_too_large"
    num_bytes: int
    limit_bytes: int
    sentence = (
        "a command has {num_bytes:,} bytes, and the limit is {limit_bytes:,}: send less at a "
        "time"
    )


class ReplayError(IntegrityError):
    """A command of the log can't be executed again on the state before it."""

    code = "integrity.replay"
    path: str
    """The log's folder."""
    position: int
    reason: str
    sentence = (
        "command {position} of the log in {path} can't be executed again: {reason}; recover "
        "from another copy or a checkpoint"
    )


class SnapshotDamagedError(IntegrityError):
    """A snapshot isn't what a server takes."""

    code = "integrity.snapshot_damaged"
    part: int
    """Number of the message in the snapshot, from 1."""
    reason: str
    sentence = (
        "message {part} of the snapshot can't be restored: {reason}; use another copy, or "
        "a checkpoint"
    )


class SnapshotOfOtherJobError(ContractError):
    """A folder holds a snapshot of another job; it is left as it is."""

    code = "contract.snapshot_of_other_job"
    path: str
    found: str
    job: str
    sentence = (
        "{path} is of job {found!r}, and not of {job!r}: name another folder, or remove that "
        "file"
    )


class SnapshotPlaceError(ContractError):
    """A snapshot is of other shards than those of this server."""

    code = "contract.snapshot_place"
    field: str
    have: str
    got: str
    sentence = (
        "the snapshot has {field} = {got}, and this server {have}: restore it where the same "
        "shards are"
    )
