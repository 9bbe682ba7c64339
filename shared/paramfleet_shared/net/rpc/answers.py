"""Errors as answers: status and body on the way out, the same class on the way in."""

from typing import Any

import msgpack

from paramfleet_shared.errors import (
    ContractError,
    FleetError,
    IntegrityError,
    OutcomeUnknownError,
    UnavailableError,
    error_from_wire,
    error_to_wire,
)
from paramfleet_shared.net.rights import OperationRefusedError
from paramfleet_shared.net.wire.message import MalformedMessageError

__all__ = ["UnknownOperationError", "error_body", "read_error", "status_of"]

_STATUS_OF_BRANCH: dict[type[FleetError], int] = {
    ContractError: 400,
    UnavailableError: 503,
    OutcomeUnknownError: 504,
    IntegrityError: 409,
}


class UnknownOperationError(ContractError):
    """The server has no such operation."""

    code = "contract.unknown_operation"
    operation: str
    server: str
    sentence = "{server} has no operation {operation!r}"


def status_of(error: BaseException) -> int:
    """Return the HTTP status that an error travels under."""
    if isinstance(error, UnknownOperationError):
        return 404
    if isinstance(error, OperationRefusedError):
        return 403
    return next(
        (s for branch, s in _STATUS_OF_BRANCH.items() if isinstance(error, branch)), 500
    )


def error_body(error: BaseException) -> bytes:
    """Return the body of an error's answer; facts that cannot travel are left out."""
    wire = error_to_wire(error)
    try:
        packed: bytes = msgpack.packb(wire)
    except (TypeError, ValueError, OverflowError):
        packed = msgpack.packb(wire | {"facts": {}})
    return packed


def read_error(body: memoryview, *, peer: str, status: int) -> FleetError:
    """Rebuild the error that a peer answered.

    Raises:
        MalformedMessageError: if the body is not an error of this system.
    """
    where = f"answer {status} of {peer}"
    try:
        wire: Any = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedMessageError(where=where, rule="is not msgpack") from error
    match wire:
        case {"code": str(), "message": str(), "facts": dict(facts)} if all(
            isinstance(name, str) for name in facts
        ):
            pass
        case _:
            raise MalformedMessageError(where=where, rule="is not an error of paramfleet")
    try:
        return error_from_wire(wire)
    except (AttributeError, TypeError, ValueError) as error:  # facts of other types than ours
        raise MalformedMessageError(where=where, rule=f"has odd facts: {error}") from error
