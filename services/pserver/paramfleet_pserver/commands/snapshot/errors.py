"""Why a snapshot can't be restored."""

from paramfleet_shared.errors import ContractError, IntegrityError

__all__ = ["SnapshotDamagedError", "SnapshotPlaceError"]


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


class SnapshotPlaceError(ContractError):
    """A snapshot is of other shards than those of this server."""

    code = "contract.snapshot_place"
    field: str
    have: str
    got: str
    sentence = (
        "the snapshot has {field} = {got}, and this server {have}: restore it where as many "
        "shards and owners are"
    )
