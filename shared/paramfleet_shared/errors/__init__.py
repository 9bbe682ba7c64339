"""Every error the system raises on purpose.

The tree answers one question: what may the caller do next?

* ``ContractError``: fix the call.
* ``UnavailableError``: try again; the call had no effect.
* ``OutcomeUnknownError``: try again only if the call is idempotent.
* ``IntegrityError``: stop the job.

A leaf class is defined beside the code that raises it, those of a pserver in
``errors.served``, where workers know them too. It states each thing once::

    class IdError(ContractError):
        code = "contract.id"
        table: str
        found: str
        rule: str
        sentence = "table {table!r}: {found}: {rule}"

Its fields are its *facts*: plain values that msgpack can carry, given by keyword.
``sentence`` names them as ``str.format`` does; a sentence that needs more is made by
``describe``. So the same class with the same facts can be built on the other side of a wire
(``error_from_wire``). ``code`` is the stable name on the wire and never changes once shipped;
it starts with its branch.
"""

import string
from collections.abc import Mapping
from inspect import get_annotations
from typing import Any, ClassVar, dataclass_transform, get_origin

from typing_extensions import override

from paramfleet_shared.values.texts import MAX_SHOWN, printable, shortened, shown

__all__ = [
    "ENDED_EARLY",
    "ContractError",
    "FleetError",
    "HeldError",
    "IntegrityError",
    "JobFailedError",
    "OutcomeUnknownError",
    "UnavailableError",
    "error_from_wire",
    "error_to_wire",
]

_MAX_MESSAGE = 4000
"""Characters of a whole sentence."""

_MORE_SHOWN = dict.fromkeys(("reason", "rule", "remedy", "words"), 2000) | dict.fromkeys(
    ("path", "where"), 1000
)
"""Characters of facts that are sentences, output or paths; of others ``MAX_SHOWN``."""

_CLASS_OF_CODE: dict[str, type["FleetError"]] = {}


@dataclass_transform(kw_only_default=True)
class FleetError(Exception):
    """Base of every error raised on purpose.

    Facts may come from a wire, a file or a user: sentence and facts are bounded, and hold no
    control characters.

    Args:
        message: The sentence a person reads: what was wrong, where, what to do. A class that
            states its facts makes it itself.
        facts: The keyword arguments the leaf class was built from.

    Raises:
        TypeError: if the facts aren't those that the class states.
    """

    code: ClassVar[str] = "internal"
    """Stable name on the wire."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without a change by the caller."""

    sentence: ClassVar[str] = ""
    """What a person reads, with the names of facts in braces."""

    _stated: ClassVar[tuple[str, ...]] = ()
    """The names of the facts that a class states."""

    def __init_subclass__(cls) -> None:
        """Make the class known by its wire code, and read which facts it states.

        Raises:
            TypeError: if its sentence names something else.
        """
        super().__init_subclass__()
        if "code" in cls.__dict__:
            _CLASS_OF_CODE[cls.code] = cls
        own = get_annotations(cls)
        facts = (name for name, kind in own.items() if ClassVar not in {kind, get_origin(kind)})
        cls._stated = (*cls._stated, *facts)
        named = {name for _, name, _, _ in string.Formatter().parse(cls.sentence) if name}
        if not named <= set(cls._stated):
            message = f"{cls.__name__}: no such facts: {sorted(named - set(cls._stated))}"
            raise TypeError(message)

    def __init__(self, message: str = "", **facts: Any) -> None:
        if self._stated or self.sentence:
            facts = self._take(message, facts)
            message = self.describe()
        super().__init__(_bounded(message, facts))
        self.facts: Mapping[str, Any] = {
            name: _fit(fact, _most(name)) for name, fact in facts.items()
        }
        self.remote = False
        """True when a peer raised it and it came over the wire."""

    def describe(self) -> str:
        """Return the sentence, from the facts that are attributes already."""
        return self.sentence.format(**{name: getattr(self, name) for name in self._stated})

    def _take(self, message: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Make the facts attributes, and return all of them in the order of the class.

        Raises:
            TypeError: if they aren't those that the class states.
        """
        defaults = {name for name in self._stated if hasattr(type(self), name)}
        lacking = sorted(set(self._stated) - set(given) - defaults)
        odd = sorted(set(given) - set(self._stated))
        if message or lacking or odd:
            rule = f"takes {', '.join(self._stated) or 'nothing'} by keyword"
            wrong = f"{type(self).__name__} {rule}; lacking {lacking}, unknown {odd}"
            raise TypeError(wrong)
        for name, fact in given.items():
            setattr(self, name, fact)
        return {name: getattr(self, name) for name in self._stated}


class ContractError(FleetError):
    """The caller broke a documented rule; nothing was changed."""

    code = "contract"


class UnavailableError(FleetError):
    """The peer cannot serve now, and the call had no effect."""

    code = "unavailable"
    retryable = True


class HeldError(UnavailableError):
    """Another process holds what only one may have; nothing was changed.

    A class below has a code of its own, and a sentence with the path and the holder.
    """

    path: str
    holder: str
    """Process id and machine; empty if they can't be told."""

    @override
    def describe(self) -> str:
        holder = f"process {self.holder}" if self.holder else "another process"
        return self.sentence.format(path=self.path, holder=holder)


class OutcomeUnknownError(FleetError):
    """The call was sent and no answer came; it may have had its effect."""

    code = "outcome_unknown"


class IntegrityError(FleetError):
    """State can no longer be trusted, or the job has ended: stop."""

    code = "integrity"


ENDED_EARLY = "its script ended without fleet.stop_worker()"
"""Why a job failed whose worker ended, by no exception, before it had said that it was done."""


class JobFailedError(IntegrityError):
    """A member of the job died or gave up, and the job ends with it."""

    code = "integrity.job_failed"
    role: str
    index: int
    reason: str
    sentence = "the job failed: {role} {index}: {reason}"


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
