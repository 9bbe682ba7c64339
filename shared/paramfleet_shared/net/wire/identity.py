"""The name of one push, by which a retry is recognised."""

from typing import Any, NamedTuple

from paramfleet_shared.net.wire.message import MalformedMessageError

__all__ = ["PushIdentity"]


class PushIdentity(NamedTuple):
    """Names one change to one table: a retry carries the same name and is applied once."""

    worker: int
    """Rank of the worker that pushes."""
    incarnation: int
    """Tells a restarted worker from its former self."""
    table: str
    """Name of the table."""
    sequence: int
    """Counts the pushes of this worker incarnation to this table, from 1."""

    def to_wire(self) -> list[Any]:
        """Return plain values for a message's fields."""
        return [self.worker, self.incarnation, self.table, self.sequence]

    @classmethod
    def from_wire(cls, wire: object) -> "PushIdentity":
        """Rebuild an identity from what ``to_wire`` returned.

        Raises:
            MalformedMessageError: if ``wire`` is anything else.
        """
        match wire:
            case [int(worker), int(incarnation), str(table), int(sequence)] if (
                min(worker, incarnation, sequence) >= 0
            ):
                return cls(
                    worker=worker, incarnation=incarnation, table=table, sequence=sequence
                )
            case _:
                raise MalformedMessageError(
                    where="push identity",
                    rule="must be [worker, incarnation, table, sequence], numbers >= 0",
                )
