"""The fields of a member's request, each checked when it is read."""

from collections.abc import Mapping, Sequence
from typing import Any

from paramfleet_shared.discovery.plan import DISK, GroupPlan, ProcessId
from paramfleet_shared.net.wire.message import MalformedMessageError
from paramfleet_shared.values.texts import MAX_NAME_LENGTH, NAME_RULE, is_name, is_printable

__all__ = ["RequestFields"]

_MOST_FOLLOWERS = 64
"""Of one group."""

_MOST_GROUPS = 65_536

_MOST = 1 << 53
"""Of terms and numbers."""


class RequestFields:
    """A request's fields, each checked when it is read."""

    def __init__(self, fields: Mapping[str, Any], *, where: str) -> None:
        self._fields = fields
        self._where = where

    def text(self, name: str) -> str:
        """Return a text of one line."""
        value = self._fields.get(name)
        is_short = isinstance(value, str) and len(value) <= MAX_NAME_LENGTH
        if not isinstance(value, str) or not is_short or not is_printable(value):
            rule = f"a text of at most {MAX_NAME_LENGTH} characters, without control characters"
            raise self._malformed(name, rule)
        return value

    def name(self, name: str) -> str:
        """Return a plain name."""
        value = self._fields.get(name)
        if not isinstance(value, str) or not is_name(value):
            raise self._malformed(name, f"a name: {NAME_RULE}")
        return value

    def optional_text(self, name: str) -> str:
        """Return a text; empty if there is none."""
        return "" if self._fields.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        """Return a whole number of at least 0."""
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._malformed(name, "a whole number of at least 0")
        return value

    def optional_integer(self, name: str, *, most: int | None = None) -> int | None:
        """Return a whole number of at least 0; None if there is none."""
        value = None if self._fields.get(name) is None else self.integer(name)
        if value is not None and most is not None and value > most:
            raise self._malformed(name, f"a whole number of at most {most}")
        return value

    def optional_flag(self, name: str) -> bool:
        """Return a flag; False if there is none."""
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise self._malformed(name, "true or false")
        return value

    def number(self, name: str) -> float:
        """Return a number of at least 0."""
        value = self._fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise self._malformed(name, "a number of at least 0")
        return float(value)

    def host_process(self, name: str, *, role: str) -> str:
        """Return which process hosts a newcomer that is a group; empty for none."""
        if not self.optional_text(name):
            return ""
        if role != "pserver":
            raise self._malformed(name, f"empty for a {role}, which no process hosts")
        return self.process(name).text

    def process(self, name: str) -> ProcessId:
        """Return which process asks."""
        try:
            return ProcessId.from_text(self.text(name))
        except ValueError:
            raise self._malformed(name, "a process, as INDEX.INCARNATION") from None

    def copies(self, name: str) -> Sequence[str]:
        """Return the names of a group's copies."""
        value = self._fields.get(name)
        fits = isinstance(value, list) and len(value) <= _MOST_FOLLOWERS
        if not isinstance(value, list) or not fits:
            raise self._malformed(name, f"a list of at most {_MOST_FOLLOWERS} processes")
        try:
            names = [each if each == DISK else ProcessId.from_text(each).text for each in value]
        except (ValueError, AttributeError, TypeError):
            raise self._malformed(name, f"processes as INDEX.INCARNATION, or {DISK}") from None
        return names

    def groups(self, name: str) -> dict[int, GroupPlan]:
        """Return what is known of groups; empty if nothing is said."""
        value = self._fields.get(name) or {}
        if not isinstance(value, dict) or len(value) > _MOST_GROUPS:
            raise self._malformed(name, "what is known by group")
        try:
            return {int(group): _group_of(known) for group, known in value.items()}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise self._malformed(name, "what is known of groups, by group") from None

    def terms(self, name: str) -> dict[int, int]:
        """Return terms by group; empty if there are none."""
        value = self._fields.get(name) or {}
        if not isinstance(value, dict) or len(value) > _MOST_GROUPS:
            raise self._malformed(name, "terms by group")
        numbers = [each for pair in value.items() for each in pair]
        plain = all(str(each).isascii() and str(each).isdecimal() for each in numbers)
        if not plain or any(len(str(each)) > 16 for each in numbers):
            raise self._malformed(name, "whole numbers by whole numbers")
        return {int(group): int(term) for group, term in value.items()}

    def _malformed(self, name: str, rule: str) -> MalformedMessageError:
        return MalformedMessageError(where=f"{self._where}.{name}", rule=f"must be {rule}")


def _group_of(wire: Any) -> GroupPlan:
    """Return what a process knows of a group.

    Raises:
        ValueError: if it isn't that; or AttributeError, KeyError, OverflowError, TypeError.
    """
    known = GroupPlan.from_wire(wire)
    numbers = (known.term, known.since_term, known.number, known.disk_term)
    copies = (*known.eligible, *known.inherited)
    if len(copies) > 2 * _MOST_FOLLOWERS or not all(0 <= each <= _MOST for each in numbers):
        raise ValueError
    for each in copies:
        ProcessId.from_text(each)
    return known
