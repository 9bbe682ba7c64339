"""Files that a document beside them lists, each with its length and SHA-256."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramfleet_shared.files.documents import whole
from paramfleet_shared.values.texts import shown

__all__ = ["FILE_NAME", "ListedFile"]

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
"""Names that listed files have: no separator and no leading dot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """One file of the folder that a document is in."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ListedFile":
        """Rebuild what ``asdict`` returned.

        Raises:
            ValueError: if the name isn't that of a file of the folder, or a length is none.
            KeyError: if a value is missing.
            TypeError: if it isn't a map.
        """
        name = wire["name"]
        if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
            rule = f"file name {shown(name)} isn't that of a file of the folder"
            raise ValueError(rule)
        return cls(name=name, bytes=whole(wire["bytes"], "bytes"), sha256=str(wire["sha256"]))
