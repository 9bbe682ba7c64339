"""What a checkpoint's manifest says of a model's state beside its tables.

That is its buffers, such as BatchNorm's statistics, and what modules return from
``get_extra_state``. The numbers are in one safetensors file; the manifest has its length and
SHA-256, the dtype and shape of each buffer, the plain values, and what was left out and why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paramfleet_shared.files.documents import whole
from paramfleet_shared.files.listed import FILE_NAME
from paramfleet_shared.values.texts import shown

__all__ = ["SavedBuffer", "SavedModule", "check_file_name"]


def check_file_name(name: str) -> None:
    """Pass if a manifest names a file of its own folder.

    Raises:
        ValueError: if the name is none that a checkpoint's file is saved under.
    """
    if not FILE_NAME.fullmatch(name) or ".." in name:
        rule = f"file name {shown(name)} leads out of the folder, or is no name of ours"
        raise ValueError(rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedBuffer:
    """One buffer of the model."""

    name: str
    """As in the model's ``state_dict``."""

    dtype: str
    """Torch's name of it, such as ``bfloat16``."""

    shape: tuple[int, ...]

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "SavedBuffer":
        """Rebuild what ``to_wire`` returned.

        Raises:
            KeyError: if a value is missing.
            ValueError: if one is of another kind.
        """
        shape = tuple(whole(length, "shape") for length in wire["shape"])
        return cls(name=str(wire["name"]), dtype=str(wire["dtype"]), shape=shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedModule:
    """A model's state beside its tables, as the manifest has it."""

    file: str = ""
    """Name of the file with the numbers; empty if there are none."""

    sha256: str = ""
    bytes: int = 0
    buffers: tuple[SavedBuffer, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Extra states by the module's path, as values that JSON can carry."""

    not_saved: Mapping[str, str] = field(default_factory=dict)
    """What was left out, and why."""

    @property
    def days(self) -> dict[str, int]:
        """Which day each table that counts by saves has, by name.

        Raises:
            TypeError: if it can't be read at all.
            ValueError: if one is no number of days.
        """
        days = dict(self.extra.get("days", {}))
        return {str(name): whole(day, f"days of {name!r}") for name, day in days.items()}

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "file": self.file,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "buffers": [buffer.to_wire() for buffer in self.buffers],
            "extra": dict(self.extra),
            "not_saved": dict(self.not_saved),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "SavedModule":
        """Rebuild what ``to_wire`` returned.

        Raises:
            KeyError: if a value is missing.
            TypeError: if one can't be read at all.
            ValueError: if one is of another kind, or the file's name leads elsewhere.
        """
        name = str(wire["file"])
        if name:
            check_file_name(name)
        return cls(
            file=name,
            sha256=str(wire["sha256"]),
            bytes=whole(wire["bytes"], "bytes"),
            buffers=tuple(SavedBuffer.from_wire(each) for each in wire["buffers"]),
            extra={str(path): value for path, value in dict(wire["extra"]).items()},
            not_saved={str(path): str(why) for path, why in dict(wire["not_saved"]).items()},
        )
