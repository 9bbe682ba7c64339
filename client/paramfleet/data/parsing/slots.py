"""What a line of data consists of: its slots, in the order of the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.settings.config import SettingError

__all__ = ["Layout", "Slot", "SlotType"]

SlotType = Literal["int64", "float32"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a line.

    Raises:
        SettingError: if a field is outside its documented range.
    """

    name: str

    dtype: SlotType = "int64"
    """``int64`` for ids and labels: whole numbers from -2**63 to 2**64 - 1, the upper half
    kept as the same 64 bits. ``float32`` for measures."""

    dense: bool = False
    """Whether every line has exactly ``width`` values of it."""

    width: int | None = None
    """Values of a line; of a dense slot 1 by default. In the batches of a model folder a
    slot that isn't dense has all its values without a width, else so many: padded, or cut."""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise SettingError(name="Slot.name", value=self.name, rule="a name")
        if self.dtype not in get_args(SlotType):
            rule = "int64 or float32"
            raise SettingError(name=f"Slot({self.name}).dtype", value=self.dtype, rule=rule)
        if self.width is None and self.dense:
            object.__setattr__(self, "width", 1)
        if self.width is not None and self.width < 1:
            rule = "at least 1"
            raise SettingError(name=f"Slot({self.name}).width", value=self.width, rule=rule)


@dataclass(frozen=True)
class Layout:
    """The slots of a dataset, and what kernels know of them.

    Raises:
        SettingError: if there is no slot, or two have one name.
    """

    slots: tuple[Slot, ...]

    def __post_init__(self) -> None:
        if not self.slots:
            raise SettingError(name="use_var", value=[], rule="the slots of a line")
        wrong: list[object] = [slot for slot in self.slots if type(slot) is not Slot]
        if wrong:
            raise SettingError(name="use_var", value=f"{wrong[0]!r}", rule="fleet.data.Slots")
        names = [slot.name for slot in self.slots]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise SettingError(name="use_var", value=twice, rule="slots of different names")

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The slots' names in order."""
        return tuple(slot.name for slot in self.slots)

    @cached_property
    def is_float(self) -> NDArray[np.uint8]:
        """Whether a slot holds floats, uint8 [S]."""
        return np.array([slot.dtype == "float32" for slot in self.slots], np.uint8)

    @cached_property
    def rules(self) -> NDArray[np.int64]:
        """What ``text_kernels.parse`` asks of the slots, int64 [S, 2]."""
        widths = [(slot.width or 1) if slot.dense else -1 for slot in self.slots]
        return np.column_stack([self.is_float.astype(np.int64), np.array(widths, np.int64)])

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the places of slots.

        Raises:
            SettingError: if there is no slot of a name.
        """
        for name in names:
            if name not in self.names:
                rule = f"slots of this dataset: {', '.join(self.names)}"
                raise SettingError(name="slots", value=name, rule=rule)
        return [self.names.index(name) for name in names]
