"""Which ids of a table get a row: ``CountFilterEntry`` and ``ProbabilityEntry``, as in Fleet.

In Paddle both are accepted and have no effect. Here the pserver decides when ids are pushed. An
id that isn't admitted reads its first value, learns nothing, and takes no row.
"""

from dataclasses import dataclass
from typing import Any

from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import MAX_ENTRY_COUNT, EntrySpec
from paramfleet_shared.values.texts import shown

__all__ = ["CountFilterEntry", "Entry", "EntryOptionError", "ProbabilityEntry"]


class EntryOptionError(ContractError):
    """An entry was given what it can't decide by."""

    code = "contract.entry_option"
    entry: str
    value: str
    rule: str
    sentence = "{entry}({value}): {rule}"


@dataclass(frozen=True)
class CountFilterEntry:
    """Admits an id in the step in which it is used for the ``count``-th time.

    Steps are counted in which an id learns, of all workers together; in async each worker's
    are steps of their own. Ids without a row are counted in a sketch of 48 MiB at most for
    each table, which counts few too high: of a million ids fewer than ten come early. Once it
    has counted much, all counts are halved, so that ids which come no more fill nothing.

    Args:
        count: From 0 to 255; 0 and 1 admit every id at once.

    Raises:
        EntryOptionError: if it is no such number.
    """

    count: int

    def __post_init__(self) -> None:
        value: Any = self.count
        if isinstance(value, bool) or not isinstance(value, int):
            rule = "must be a whole number"
            raise EntryOptionError(entry="CountFilterEntry", value=shown(value), rule=rule)
        if not 0 <= value <= MAX_ENTRY_COUNT:
            rule = f"must be from 0 to {MAX_ENTRY_COUNT}"
            raise EntryOptionError(entry="CountFilterEntry", value=shown(value), rule=rule)

    @property
    def spec(self) -> EntrySpec:
        """Return it as pservers and checkpoints know it."""
        if self.count <= 1:
            return EntrySpec()
        return EntrySpec(kind="count_filter", value=self.count)


@dataclass(frozen=True)
class ProbabilityEntry:
    """Admits a share of all ids, by a hash of the id: an id has the same answer for ever.

    Args:
        probability: The share, between 0 and 1.

    Raises:
        EntryOptionError: if it is no such number.
    """

    probability: float

    def __post_init__(self) -> None:
        value: Any = self.probability
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0.0 < value < 1.0:
            rule = "must be a number between 0 and 1"
            raise EntryOptionError(entry="ProbabilityEntry", value=shown(value), rule=rule)

    @property
    def spec(self) -> EntrySpec:
        """Return it as pservers and checkpoints know it."""
        return EntrySpec(kind="probability", value=self.probability)


Entry = CountFilterEntry | ProbabilityEntry
