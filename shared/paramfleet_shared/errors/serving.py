"""Errors of a process that serves a change stream; its clients know them, too."""

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError

__all__ = [
    "LookupRequestError",
    "LookupTooLargeError",
    "NoVersionError",
    "NumberNotKeptError",
    "OtherTablesError",
    "OutOfOrderError",
    "ServerBusyError",
    "ServingTableError",
]


class LookupRequestError(ContractError):
    """A request can't be read as what it must be."""

    code = "contract.lookup_request"
    where: str
    """Which part of it."""
    rule: str
    sentence = "{where}: {rule}"


class LookupTooLargeError(ContractError):
    """A request asks for more than one may ask at a time."""

    code = "contract.lookup_too_large"
    what: str
    found: int
    most: int
    sentence = "{found} {what}, and a request may have {most}: split it"


class ServingTableError(ContractError):
    """A request names a table that isn't served."""

    code = "contract.serving_table"
    table: str
    there: str
    sentence = "there is no table {table!r}; there are: {there}"


class NumberNotKeptError(ContractError):
    """A version can't be served again: what it is made of isn't there any more."""

    code = "contract.number_not_kept"
    number: int
    stream: str
    reason: str
    sentence = "number {number} of stream {stream} can't be served: {reason}"


class NoVersionError(UnavailableError):
    """There is no version to serve as yet."""

    code = "unavailable.no_version"
    reason: str
    sentence = "there is no version to serve yet: {reason}"


class ServerBusyError(UnavailableError):
    """As many requests are in work as may be; try again a little later."""

    code = "unavailable.server_busy"
    most: int
    sentence = "the server has {most} requests at the moment, the maximum"


class OtherTablesError(IntegrityError):
    """A base has other tables than what is served; it isn't taken."""

    code = "integrity.other_tables"
    stream: str
    number: int
    rule: str
    sentence = (
        "base {number} of stream {stream}: {rule}; the current version is still served. To "
        "accept the base, start with --accept-other-tables"
    )


class OutOfOrderError(IntegrityError):
    """A change isn't the next one of what is served; it isn't applied."""

    code = "integrity.change_not_next"
    stream: str
    number: int
    rule: str
    sentence = "change {number} of stream {stream}: {rule}; the current version is still served"
