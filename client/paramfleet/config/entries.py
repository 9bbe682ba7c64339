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
    """An entry has an argument that it cannot use."""

    code = "contract.entry_option"
    entry: str
    value: str
    rule: str
    sentence = "{entry}({value}): {rule}"


@dataclass(frozen=True)
class CountFilterEntry:
    """Admits an id in the step in which it is used for the ``count``-th time.

    The count of an id is the number of steps that train it, over all workers; in async the
    steps of each worker count separately. Ids without a row are counted in a sketch of at most
    48 MiB for each table. Its counts are seldom too high: of a million ids fewer than ten are
    admitted early. From time to time all counts are halved, so that ids that are not used any
    more do not fill the sketch.

    Args:
        count: From 0 to 255; 0 and 1 admit every id at its first use.

    Raises:
        EntryOptionError: if ``count`` is not such a number.
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
    """Admits a share of all ids, by a hash of the id: the decision never changes.

    Args:
        probability: The share, between 0 and 1.

    Raises:
        EntryOptionError: if ``probability`` is not such a number.
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
