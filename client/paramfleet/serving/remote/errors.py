"""What can be wrong with a server of rows, or with what is asked of it."""

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError

__all__ = [
    "LookupIdsError",
    "RemoteOptionError",
    "ServerAnswerError",
    "ServerRefusedError",
    "ServerUnreachableError",
]


class ServerUnreachableError(UnavailableError):
    """The server did not answer completely in time."""

    code = "unavailable.serving"
    url: str
    reason: str
    sentence = "no answer from {url}: {reason}"


class ServerRefusedError(ContractError):
    """The server refused the caller or the request."""

    code = "contract.serving_refused"
    url: str
    status: int
    reason: str
    sentence = "{url} answered {status}: {reason}"


class ServerAnswerError(IntegrityError):
    """The answer of the server does not match the request."""

    code = "integrity.serving_answer"
    url: str
    reason: str
    sentence = "the answer of {url}: {reason}"


class RemoteOptionError(ContractError):
    """An argument of the client is wrong."""

    code = "contract.remote_option"
    option: str
    rule: str
    sentence = "{option}: {rule}"


class LookupIdsError(ContractError):
    """The ids of a lookup are not integers."""

    code = "contract.lookup_ids"
    table: str
    dtype: str
    sentence = "ids of table {table!r} are {dtype}: give integers, such as int64"
