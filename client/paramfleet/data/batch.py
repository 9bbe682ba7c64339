"""What a dataset yields: the values of each slot, and where each sample's begin."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paramfleet.data.parsing.row_kernels import to_columns
from paramfleet.data.parsing.rows import Rows
from paramfleet.data.parsing.slots import Layout, Slot
from paramfleet_shared.errors import ContractError

__all__ = ["Batch", "NotDenseError", "SlotValues"]


class NotDenseError(ContractError):
    """A slot of any number of values was asked for as a matrix."""

    code = "contract.not_dense"
    slot: str
    sentence = (
        "slot {slot} may have any number of values: declare it with dense=True and "
        "its width, or take padded(width)"
    )


@dataclass(frozen=True, slots=True, eq=False)
class SlotValues:
    """One slot of a batch. B = samples of the batch."""

    slot: Slot
    values: torch.Tensor
    """Of all samples, one behind the other; int64 or float32, [total]."""
    offsets: torch.Tensor
    """Where each sample's values begin, and where the last one's end; int64 [B + 1]."""

    @property
    def counts(self) -> torch.Tensor:
        """How many values each sample has, int64 [B]."""
        return self.offsets[1:] - self.offsets[:-1]

    def padded(self, width: int, fill: float = 0) -> torch.Tensor:
        """Return ``[B, width]``: a sample's first values, then ``fill``."""
        counts = self.counts
        columns = torch.arange(width, device=self.offsets.device)
        has = columns < counts.unsqueeze(1)
        result = self.values.new_full(has.shape, fill)
        places = self.offsets[:-1].unsqueeze(1) + columns
        result[has] = self.values[places[has]]
        return result

    def dense(self) -> torch.Tensor:
        """Return ``[B, width]``, a view of the values.

        Raises:
            NotDenseError: if the slot isn't declared dense.
        """
        if not self.slot.dense:
            raise NotDenseError(slot=self.slot.name)
        return self.values.view(-1, self.slot.width or 1)


class Batch:
    """Samples by slot: ``batch["label"].dense()``, ``batch["query"].values``.

    It reads as a mapping, but is none: a ``DataLoader`` takes mappings apart.

    All slots share three tensors, so that a batch crosses from a ``DataLoader``'s
    process as cheaply with a thousand slots as with one.

    Args:
        layout: The slots.
        ids: The integers of all slots, slot after slot, int64.
        floats: The floats of all slots, slot after slot, float32.
        offsets: By slot, int64 [S, B + 1], each from 0.
        position: How far its dataset has come with it; see ``QueueDataset.advance``.
        spans: Begin and end of each slot's values, where they are known already.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        ids: torch.Tensor,
        floats: torch.Tensor,
        offsets: torch.Tensor,
        position: Mapping[str, Any],
        spans: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._spans = spans or _spans(layout, offsets)
        self._layout = layout
        self._ids = ids
        self._floats = floats
        self._offsets = offsets
        self.position = position

    @classmethod
    def of(
        cls,
        layout: Layout,
        rows: Rows,
        order: "np.typing.NDArray[np.int64]",
        position: Mapping[str, Any],
    ) -> "Batch":
        """Return the batch of these rows."""
        num_ids = int((rows.id_starts[order + 1] - rows.id_starts[order]).sum())
        num_floats = int((rows.float_starts[order + 1] - rows.float_starts[order]).sum())
        ids = np.empty(num_ids, np.int64)
        floats = np.empty(num_floats, np.float32)
        offsets = np.zeros((len(layout), len(order) + 1), np.int64)
        to_columns(
            (rows.counts, rows.ids, rows.floats, rows.id_starts, rows.float_starts),
            order,
            layout.is_float,
            offsets,
            (ids, floats),
        )
        return cls(
            layout,
            ids=torch.from_numpy(ids),
            floats=torch.from_numpy(floats),
            offsets=torch.from_numpy(offsets),
            position=position,
        )

    @property
    def size(self) -> int:
        """Samples."""
        return self._offsets.shape[1] - 1

    def __getitem__(self, name: str) -> SlotValues:
        """Return a slot; its tensors are views.

        Raises:
            KeyError: if there is none of this name.
        """
        if name not in self._layout.names:
            raise KeyError(name)
        number = self._layout.names.index(name)
        slot = self._layout.slots[number]
        begin, end = self._spans[number]
        values = self._floats if slot.dtype == "float32" else self._ids
        return SlotValues(slot, values[begin:end], self._offsets[number])

    def __contains__(self, name: object) -> bool:
        return name in self._layout.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.names)

    def __len__(self) -> int:
        return len(self._layout)

    def keys(self) -> tuple[str, ...]:
        """Return the slots' names in order."""
        return self._layout.names

    def items(self) -> Iterator[tuple[str, SlotValues]]:
        """Yield names and slots in order."""
        return ((name, self[name]) for name in self)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch on a device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory; a ``DataLoader`` calls it."""
        return self._mapped(torch.Tensor.pin_memory)

    def _mapped(self, function: Any) -> "Batch":
        return Batch(
            self._layout,
            ids=function(self._ids),
            floats=function(self._floats),
            offsets=function(self._offsets),
            position=self.position,
            spans=self._spans,
        )


def _spans(layout: Layout, offsets: torch.Tensor) -> list[tuple[int, int]]:
    """Return begin and end of each slot's values among those of its kind."""
    ends, spans = [0, 0], []
    for kind, total in zip(layout.is_float.tolist(), offsets[:, -1].tolist(), strict=True):
        spans.append((ends[kind], ends[kind] + total))
        ends[kind] += total
    return spans
