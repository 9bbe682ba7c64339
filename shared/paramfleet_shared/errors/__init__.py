"""Every error the system raises on purpose.

The tree answers one question: what may the caller do next?

* ``ContractError``: fix the call.
* ``UnavailableError``: try again; the call had no effect.
* ``OutcomeUnknownError``: try again only if the call is idempotent.
* ``IntegrityError``: stop the job.

A leaf class lives beside the code that raises it, those of a pserver in
``served_errors``, where workers know them too. Its ``__init__`` takes only
keyword arguments, its *facts*: plain values that msgpack can carry. It builds
its own sentence from them, so that the same class with the same facts can be
built on the other side of a wire (``error_from_wire``). ``code`` is the stable
name on the wire and never changes once shipped; it starts with its branch.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from paramfleet_shared.values.texts import MAX_SHOWN, printable, shortened, shown

__all__ = [
    "ContractError",
    "FleetError",
    "IntegrityError",
    "JobFailedError",
    "OutcomeUnknownError",
    "UnavailableError",
    "error_from_wire",
    "error_to_wire",
]

_MAX_MESSAGE = 4000
"""Characters of a whole sentence."""

_MORE_SHOWN = {"reason": 2000, "rule": 2000, "remedy": 2000, "path": 1000, "where": 1000}
"""Characters of facts that are sentences or paths; of others ``MAX_SHOWN``."""

_CLASS_OF_CODE: dict[str, type["FleetError"]] = {}


class FleetError(Exception):
    """Base of every error raised on purpose.

    Facts may come from a wire, a file or a user: sentence and facts are bounded, and hold no
    control characters.

    Args:
        message: The sentence a person reads: what was wrong, where, what to do.
        facts: The keyword arguments the leaf class was built from.
    """

    code: ClassVar[str] = "internal"
    """Stable name on the wire."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without a change by the caller."""

    def __init_subclass__(cls) -> None:
        """Make the class known by its wire code."""
        super().__init_subclass__()
        if "code" in cls.__dict__:
            _CLASS_OF_CODE[cls.code] = cls

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(_bounded(message, facts))
        self.facts: Mapping[str, Any] = {
            name: _fit(fact, _most(name)) for name, fact in facts.items()
        }
        self.remote = False
        """True when a peer raised it and it came over the wire."""


class ContractError(FleetError):
    """The caller broke a documented rule; nothing was changed."""

    code = "contract"


class UnavailableError(FleetError):
    """The peer cannot serve now, and the call had no effect."""

    code = "unavailable"
    retryable = True


class OutcomeUnknownError(FleetError):
    """The call was sent and no answer came; it may have had its effect."""

    code = "outcome_unknown"


class IntegrityError(FleetError):
    """State can no longer be trusted, or the job has ended: stop."""

    code = "integrity"


class JobFailedError(IntegrityError):
    """A member of the job died or gave up, and the job ends with it."""

    code = "integrity.job_failed"

    def __init__(self, *, role: str, index: int, reason: str) -> None:
        super().__init__(
            f"the job failed: {role} {index}: {reason}", role=role, index=index, reason=reason
        )
        self.role = role
        self.index = index
        self.reason = reason


def error_to_wire(error: BaseException) -> dict[str, Any]:
    """Return ``{"code", "message", "facts"}``; an unplanned error becomes ``internal``."""
    if isinstance(error, FleetError):
        return {"code": error.code, "message": str(error), "facts": dict(error.facts)}
    message = shortened(printable(f"{type(error).__name__}: {error}"), _MAX_MESSAGE)
    return {"code": "internal", "message": message, "facts": {}}


def error_from_wire(wire: Mapping[str, Any]) -> FleetError:
    """Rebuild a peer's error as the same class, with ``remote`` set.

    A code this version doesn't know becomes its nearest known branch, with the
    peer's sentence.
    """
    code, message, facts = str(wire["code"]), str(wire["message"]), dict(wire["facts"])
    cls = _CLASS_OF_CODE.get(code)
    error: FleetError
    if cls is not None and facts:
        try:
            error = cls(**facts)
        except TypeError:  # a peer of another version sent other facts
            error = _nearest_branch(code)(message, **facts)
    else:
        error = _nearest_branch(code)(message, **facts)
    error.remote = True
    return error


def _bounded(message: str, facts: Mapping[str, Any]) -> str:
    """Return a sentence in which long facts are cut where they stand."""
    if len(message) > MAX_SHOWN:
        for name, fact in facts.items():
            most = _most(name)
            if isinstance(fact, str) and len(fact) > most:
                message = message.replace(repr(fact), shown(fact, most))
                message = message.replace(fact, shortened(fact, most))
            elif isinstance(fact, bytes | list | tuple | dict) and len(repr(fact)) > most:
                message = message.replace(repr(fact), shown(fact, most))
    return shortened(printable(message), _MAX_MESSAGE)


def _fit(fact: Any, most: int) -> Any:
    """Return a fact whose texts are bounded and hold no control characters."""
    if isinstance(fact, str):
        return printable(shortened(fact, most))
    if isinstance(fact, dict):
        return {_fit(name, most): _fit(each, most) for name, each in fact.items()}
    if isinstance(fact, list | tuple):
        fitted = [_fit(each, most) for each in fact]
        return fitted if isinstance(fact, list) else tuple(fitted)
    return fact


def _most(name: str) -> int:
    return _MORE_SHOWN.get(name, MAX_SHOWN)


def _nearest_branch(code: str) -> type[FleetError]:
    branches = (ContractError, UnavailableError, OutcomeUnknownError, IntegrityError)
    return next((b for b in branches if code.split(".", maxsplit=1)[0] == b.code), FleetError)
