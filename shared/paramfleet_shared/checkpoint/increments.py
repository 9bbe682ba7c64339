"""What a manifest says of a checkpoint that holds only what changed since another one.

That other one is its *base*: known by the identity that its manifest has (``save``), and looked
for in the folder of the base's name beside this one. A base may have a base itself.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paramfleet_shared.checkpoint.saved_module import check_file_name
from paramfleet_shared.files.documents import whole
from paramfleet_shared.values.texts import shown

__all__ = ["Base", "Increment", "RemovedIds", "is_identity"]

_IDENTITY = re.compile(r"[0-9a-f]{32}")


def is_identity(text: Any) -> bool:
    """Return whether a text may be the identity of a save."""
    return type(text) is str and _IDENTITY.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedIds:
    """A file with ids, int64 [n], whose rows were removed since the base."""

    name: str
    sha256: str
    bytes: int
    ids: int
    """How many."""
    table: str

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "RemovedIds":
        """Rebuild what ``to_wire`` returned.

        Raises:
            KeyError: if a value is missing.
            ValueError: if one is of another kind.
        """
        name = str(wire["name"])
        check_file_name(name)
        return cls(
            name=name,
            sha256=str(wire["sha256"]),
            bytes=whole(wire["bytes"], "bytes"),
            ids=whole(wire["ids"], "ids"),
            table=str(wire["table"]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The checkpoint that an increment is of."""

    save: str
    """Its identity."""
    folder: str
    """The name of its folder, beside that of the increment."""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Base":
        """Rebuild it from plain values.

        Raises:
            KeyError: if a value is missing.
            ValueError: if one can't be.
        """
        save, folder = wire["save"], str(wire["folder"])
        if not is_identity(save):
            rule = f"{shown(save)} is no identity of a save"
            raise ValueError(rule)
        check_file_name(folder)
        return cls(save=save, folder=folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class Increment:
    """Of what a checkpoint is an increment, and what it removes from that."""

    base: Base
    removed: tuple[RemovedIds, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return {"base": asdict(self.base), "removed": [each.to_wire() for each in self.removed]}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Increment":
        """Rebuild what ``to_wire`` returned.

        Raises:
            KeyError: if a value is missing.
            TypeError: if it can't be read at all.
            ValueError: if one is of another kind.
        """
        removed = tuple(RemovedIds.from_wire(each) for each in wire["removed"])
        return cls(base=Base.from_wire(wire["base"]), removed=removed)
