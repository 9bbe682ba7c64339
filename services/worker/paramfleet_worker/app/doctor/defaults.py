"""What a table has where nothing is said: ``paramfleet doctor --defaults``.

Taken from where it holds: there is one set of defaults, whichever way a table is described.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from paramfleet.config.accessor import CtrAccessor, SparseRule
from paramfleet.config.eviction import EVICTION_KEYS
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.spec import MAX_ENTRY_COUNT, EntrySpec

__all__ = ["Default", "lines_of", "table_defaults"]

_EVERY_ID = "Which ids get a row: without an entry every one, when it is looked up in training."


class Default(NamedTuple):
    """What an option is that isn't given."""

    value: Any
    meaning: str
    """A sentence; empty for a rule's own constant."""


def table_defaults() -> dict[str, dict[str, Default]]:
    """Return the defaults of accessors, their rules, entries and eviction, by option."""
    accessor = CtrAccessor()
    meanings = _meanings(CtrAccessor)
    return {
        "accessor": {
            each.name: Default(_plain(getattr(accessor, each.name)), meanings[each.name])
            for each in fields(accessor)
            if each.init
        },
        **{f"rule {name}": _rule_of(name) for name in PART_RULES},
        "entry": {
            "kind": Default(EntrySpec().kind, _EVERY_ID),
            "CountFilterEntry": Default(
                None, f"Its count: a whole number from 0 to {MAX_ENTRY_COUNT}."
            ),
            "ProbabilityEntry": Default(None, "Its probability: above 0 and below 1."),
        },
        "eviction": {
            name: Default(key.default, key.meaning) for name, key in EVICTION_KEYS.items()
        },
    }


def lines_of(defaults: Mapping[str, Mapping[str, Default]]) -> Iterator[str]:
    """Yield them as a text.

    Args:
        defaults: As of ``table_defaults``.
    """
    for title, options in defaults.items():
        yield title
        for name, (value, meaning) in options.items():
            said = "none" if value is None else value
            yield f"    {name} = {said}" + (f": {meaning}" if meaning else "")


def _rule_of(name: str) -> dict[str, Default]:
    """Return the defaults of a rule's options, its own constants included."""
    rule, meanings = SparseRule(name), _meanings(SparseRule)
    options = ("learning_rate", "initial_range", "weight_bounds")
    own = {each: Default(_plain(getattr(rule, each)), meanings[each]) for each in options}
    return own | {each.name: Default(each.default, "") for each in PART_RULES[name].constants}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, SparseRule):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def _meanings(kind: type) -> dict[str, str]:
    """Return what a class says of its arguments, by name."""
    _, _, section = (inspect.getdoc(kind) or "").partition("\nArgs:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.partition("\n\n")[0].splitlines():
        if line.startswith(" " * 8):  # goes on
            found[name] += f" {line.strip()}"
            continue
        name, _, meaning = line.strip().partition(": ")
        found[name] = meaning
    return found
