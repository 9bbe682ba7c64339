"""Errors of the tier on disk."""

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError

__all__ = [
    "TIER_FAILURES",
    "TierChangedError",
    "TierClosedError",
    "TierDamagedError",
    "TierFailedError",
    "TierFolderError",
    "TierFullError",
    "TierInUseError",
    "TierLateError",
    "TierLeaveError",
    "TierReadError",
]


class TierFolderError(ContractError):
    """A folder can't hold the rows of this table; it is left as it is."""

    code = "contract.tier_folder"
    path: str
    reason: str
    sentence = "the folder {path} can't hold these rows: {reason}; name another one"


class TierInUseError(UnavailableError):
    """Another process, or another part of this one, has the folder open."""

    code = "unavailable.tier_in_use"
    path: str
    sentence = "the rows in {path} are in use by another process: end that one"


class TierClosedError(ContractError):
    """The tier was closed before the call."""

    code = "contract.tier_closed"
    path: str
    sentence = "the rows in {path} are closed: open the folder again"


class TierChangedError(ContractError):
    """Rows were changed while somebody went through all of them."""

    code = "contract.tier_changed"
    path: str
    sentence = "rows in {path} were changed while they were read: read all of them again"


class TierFullError(UnavailableError):
    """A disk has no room for more rows; those that were taken before are all there."""

    code = "unavailable.tier_full"
    path: str
    reason: str
    sentence = "there is no space for more rows in {path}: {reason}; free space on that disk"


class TierLateError(UnavailableError):
    """Rows weren't read in time."""

    code = "unavailable.tier_late"
    path: str
    num_keys: int
    limit_s: float
    sentence = (
        "{num_keys:,} keys weren't read within {limit_s:g} s from {path}: that disk is too slow"
        " or too busy"
    )


class TierReadError(UnavailableError):
    """A disk refuses to be read; nothing was changed."""

    code = "unavailable.tier_read"
    path: str
    reason: str
    sentence = "{path} can't be read: {reason}; check that disk"


class TierFailedError(IntegrityError):
    """A disk refused what was written, and nobody knows what of it is there.

    The tier does nothing more. Opened again, it has all that a ``sync`` has acknowledged.
    """

    code = "integrity.tier_failed"
    path: str
    reason: str
    sentence = "{path} can't be written: {reason}; check that disk, and open the folder again"


class TierDamagedError(IntegrityError):
    """What was written isn't what is read."""

    code = "integrity.tier_damaged"
    path: str
    where: str
    reason: str
    sentence = (
        "{path} is damaged at {where}: {reason}; recover from another copy or a checkpoint"
    )


class TierLeaveError(IntegrityError):
    """Rows can't leave memory, as a disk refuses to be read; the call before that was done."""

    code = "integrity.tier_leave"
    path: str
    reason: str
    sentence = (
        "rows can't be evicted from memory, because {path} can't be read: {reason}; the "
        "request itself was executed, so don't repeat it; check that disk"
    )


TIER_FAILURES = (TierReadError, TierFailedError, TierDamagedError, TierLeaveError)
"""Of a disk on which rows are that can't be used any more."""
