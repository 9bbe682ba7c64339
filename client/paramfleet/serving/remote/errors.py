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
    """No whole answer came in time."""

    code = "unavailable.serving"
    url: str
    reason: str
    sentence = "no answer from {url}: {reason}"


class ServerRefusedError(ContractError):
    """The server doesn't answer this caller, or not this."""

    code = "contract.serving_refused"
    url: str
    status: int
    reason: str
    sentence = "{url} answered {status}: {reason}"


class ServerAnswerError(IntegrityError):
    """What came isn't an answer to what was asked."""

    code = "integrity.serving_answer"
    url: str
    reason: str
    sentence = "the answer of {url}: {reason}"


class RemoteOptionError(ContractError):
    """An argument can't be what a client needs."""

    code = "contract.remote_option"
    option: str
    rule: str
    sentence = "{option}: {rule}"


class LookupIdsError(ContractError):
    """What was to be looked up are no ids."""

    code = "contract.lookup_ids"
    table: str
    dtype: str
    sentence = "ids of table {table!r} are {dtype}: give whole numbers, as int64"
