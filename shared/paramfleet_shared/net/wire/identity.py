"""The name of one change, by which a retry is recognised."""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FIRST_SEQUENCE", "NORMS", "PROGRESS", "ChangeIdentity"]

FIRST_SEQUENCE = 1


PROGRESS = "progress"
"""Name of the tensor by which a change says where its worker is."""


NORMS = "norms"
"""Name of the tensor by which a push says which norms of the step's gradient its worker was
answered."""


class ChangeIdentity(NamedTuple):
    """Names one change, on every pserver alike: a retry carries the same name.

    A change is a push, an exchange, or a message of one that is divided, over all its tables.
    """

    worker: int
    """Rank of the worker whose change it is."""
    incarnation: int
    """Tells a restarted worker from its former self."""
    sequence: int
    """Counts the changes of this worker incarnation, from 1."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "ChangeIdentity":
        """Return what ``fields`` are of."""
        return cls(fields["rank"], fields["incarnation"], fields["sequence"])

    def fields(self) -> dict[str, Any]:
        """Return the header's part."""
        return {
            "rank": self.worker,
            "incarnation": self.incarnation,
            "sequence": self.sequence,
        }
