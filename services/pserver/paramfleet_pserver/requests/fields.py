"""Typed reading of the plain values in a message's header."""

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from paramfleet_shared.net.wire.message import MalformedMessageError

__all__ = ["Fields"]

MOST = (1 << 63) - 1
"""Of whole numbers: what fits into 64 bits with a sign."""

MOST_STEPS = float(1 << 53)
"""Of a mean number of steps: its square is finite."""

MAX_PARTS = 4096
"""Most parts of one message: as many as it may have tensors."""

_Choice = TypeVar("_Choice", bound=str)
_Default = TypeVar("_Default", float, None)


class Fields:
    """Typed reading of a message's fields.

    Args:
        values: The fields.
        where: What they belong to, for errors.

    Raises:
        MalformedMessageError: if the fields, which may be a field's value, are none.
    """

    def __init__(self, values: Mapping[str, Any], *, where: str) -> None:
        if not isinstance(values, (dict, Mapping)):  # a dict is recognized faster
            raise MalformedMessageError(where=where, rule="must be a map of fields by name")
        self._values = values
        self._where = where

    def integer(self, name: str, *, least: int = 0, most: int = MOST) -> int:
        """Return a whole number from ``least`` to ``most``, or below 2^63."""
        value = self._values.get(name)
        if type(value) is not int or not least <= value <= most:
            end = "below 2^63" if most == MOST else f"at most {most:,}"
            raise self._wrong(name, f"must be a whole number >= {least}, {end}")
        return value

    def has(self, name: str) -> bool:
        """Return whether there is a field of a name, and it isn't None."""
        return self._values.get(name) is not None

    def optional_integer(self, name: str) -> int | None:
        """Return a whole number >= 0, or None if it is absent or None."""
        return None if self._values.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """Return a finite number."""
        value = self._values.get(name)
        if type(value) not in {int, float} or not math.isfinite(value):  # type: ignore[arg-type]  # narrowed
            raise self._wrong(name, "must be a finite number")
        return float(value)  # type: ignore[arg-type]  # narrowed by the test above

    def optional_number(self, name: str, default: _Default) -> float | _Default:
        """Return a finite number, or ``default`` if it is absent or None."""
        return default if self._values.get(name) is None else self.number(name)

    def count(self, name: str) -> float:
        """Return a number of steps below 2^53, perhaps a mean; absent or less than 0 is 0."""
        value = self.optional_number(name, 0.0)
        if value >= MOST_STEPS:
            raise self._wrong(name, "must be below 2^53")
        return max(0.0, value)

    def fraction(self, name: str) -> float:
        """Return a number from 0 to 1; absent is 0."""
        value = self.number(name) if name in self._values else 0.0
        if not 0.0 <= value <= 1.0:
            raise self._wrong(name, "must be from 0 to 1")
        return value

    def flag(self, name: str) -> bool:
        """Return a truth value; absent is False."""
        value = self._values.get(name, False)
        if type(value) is not bool:
            raise self._wrong(name, "must be true or false")
        return value

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._values.get(name)
        if type(value) is not str:
            raise self._wrong(name, "must be a string")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings; absent is empty."""
        value = self._values.get(name, [])
        if type(value) is not list or any(type(each) is not str for each in value):
            raise self._wrong(name, "must be a list of strings")
        return value

    def rows(self, name: str, width: int) -> list[list[int]]:
        """Return a list of lists of ``width`` whole numbers; absent is empty."""
        value = self._values.get(name, [])
        if type(value) is not list or not all(
            type(row) is list and len(row) == width and all(type(n) is int for n in row)
            for row in value
        ):
            raise self._wrong(name, f"must be a list of lists of {width} whole numbers")
        return value

    def choice(self, name: str, choices: Collection[_Choice], default: _Choice) -> _Choice:
        """Return one of some strings; absent is ``default``."""
        value = self._values.get(name, default)
        for known in choices:
            if known == value:
                return known
        raise self._wrong(name, f"must be one of {', '.join(choices)}")

    def map(self, name: str) -> Mapping[str, Any]:
        """Return a map."""
        value = self._values.get(name)
        if type(value) is not dict:
            raise self._wrong(name, "must be a map")
        return value

    def parts(self, name: str) -> list[Mapping[str, Any]]:
        """Return a list of maps."""
        value = self._values.get(name)
        if type(value) is not list:
            raise self._wrong(name, "must be a list of maps")
        if len(value) > MAX_PARTS:
            raise self._wrong(name, f"has {len(value)} parts, and may have {MAX_PARTS}")
        for part in value:
            if type(part) is not dict:
                raise self._wrong(name, "must be a list of maps")
        return value

    def _wrong(self, name: str, rule: str) -> MalformedMessageError:
        return MalformedMessageError(where=f"{self._where} field {name!r}", rule=rule)
