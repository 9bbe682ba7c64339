"""Dense parameters of one optimizer group, seen as one flat vector.

Legend: P = all values of the group's parameters, in the order of the group, n = values of a
piece of them.
"""

import ctypes
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.devices import to_device, to_host
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import InitializerSpec, NamedShape, OptimizerSpec, TableSpec
from paramfleet_shared.values.spans import Span, union

__all__ = ["DenseBlock", "DenseChangedError", "SetValues"]


class SetValues(NamedTuple):
    """Values of a block that the program has changed itself since they were installed."""

    places: NDArray[np.int64]
    """Of the values in the block, rising. [k]"""
    values: NDArray[np.float32]
    """As they are now. [k]"""


class DenseChangedError(ContractError):
    """A program changed dense parameters that are too large for a copy to compare with."""

    code = "contract.dense_changed"
    table: str
    values: int
    sentence = (
        "table {table!r}: the program has changed its parameters between two steps, and they "
        "are too large ({values} values) to send what has changed: leave them to the "
        "optimizer, or train in sync or geo mode"
    )


class DenseBlock:
    """The parameters of one group as float32 [P].

    Args:
        name: The dense table's name in the job.
        parameters: Parameters of a group; their number and shapes are fixed from now on.
        is_asleep: Whether they are frozen.
    """

    def __init__(
        self, name: str, parameters: Sequence[torch.Tensor], *, is_asleep: bool = False
    ) -> None:
        self.name = name
        self.is_asleep = is_asleep
        """Whether no parameter has been trained yet, by any worker as far as is known."""
        self.parameters = tuple(parameters)
        self.size = sum(parameter.numel() for parameter in self.parameters)
        self.notes_changes = False
        """Whether ``changes`` is asked for: then installed values are kept."""
        self._installed: torch.Tensor | None = None
        """What was installed last, float32 [P]."""
        self._versions: list[tuple[int, int]] | None = None
        """Of the parameters when they were installed last, where no copy is kept."""

    def spec(
        self,
        rule: OptimizerSpec,
        *,
        num_shards: int = 1,
        parameters: tuple[NamedShape, ...] = (),
    ) -> TableSpec:
        """Describe the table to the pservers or a checkpoint.

        Args:
            rule: What trains it.
            num_shards: Of the job.
            parameters: Their names and shapes; see ``dense_parameters.named_in``.
        """
        return TableSpec(
            name=self.name,
            kind="dense",
            dim=1,
            size=self.size,
            num_shards=num_shards,
            seed=0,
            initializer=InitializerSpec(kind="zeros"),
            optimizer=rule,
            parameters=parameters,
        )

    def starts(self) -> list[int]:
        """Return the place of each parameter's first value."""
        sizes = [parameter.numel() for parameter in self.parameters]
        return [sum(sizes[:number]) for number in range(len(sizes))]

    def values(self) -> NDArray[np.float32]:
        """Return a copy of the values, float32 [P]."""
        return self._flat([parameter.detach() for parameter in self.parameters])

    def gradients(self, given: Container[int] | None = None) -> NDArray[np.float32]:
        """Return a copy of the gradients, float32 [P]; zero where a parameter has none.

        Args:
            given: Ids of the gradients that count, as Python's ``id``; None for all.
        """
        return self._flat(
            [
                torch.zeros_like(parameter)
                if parameter.grad is None
                or (given is not None and id(parameter.grad) not in given)
                else parameter.grad
                for parameter in self.parameters
            ]
        )

    def with_gradients(self) -> tuple[Span, ...] | None:
        """Return which values have a gradient; None for all of them."""
        return self.spans_of([parameter.grad is not None for parameter in self.parameters])

    def spans_of(self, chosen: Sequence[bool]) -> tuple[Span, ...] | None:
        """Return which values some parameters have; None for all of them."""
        if all(chosen):
            return None
        spans, position = [], 0
        for parameter, is_chosen in zip(self.parameters, chosen, strict=True):
            start, position = position, position + parameter.numel()
            if is_chosen:
                spans.append((start, position))
        found = union(spans)
        return None if found == ((0, self.size),) else found

    @property
    def learns(self) -> bool:
        """Whether a parameter needs a gradient now."""
        return any(parameter.requires_grad for parameter in self.parameters)

    def wake(self, values_P: NDArray[np.float32], *, installs: bool) -> None:
        """Take part in steps from now on.

        Args:
            values_P: What the servers hold, float32 [P].
            installs: Whether another worker has trained it already: the parameters are set to
                these values. Else what differs from them was changed here.
        """
        self.is_asleep, self.notes_changes = False, True
        if installs:
            self.install(values_P)
        else:
            flat = torch.from_numpy(values_P)
            devices = {parameter.device for parameter in self.parameters}
            self._installed = to_device(flat, devices.pop()) if len(devices) == 1 else flat

    def watch_versions(self) -> None:
        """Keep no copy of what is installed from now on: changes are refused, not found."""
        self.notes_changes, self._installed = False, None
        self._versions = self._versions_now()

    def _versions_now(self) -> list[tuple[int, int]]:
        versions = (each._version for each in self.parameters)  # noqa: SLF001 - torch has no other
        return list(zip(versions, (each.data_ptr() for each in self.parameters), strict=True))

    def changes(self) -> SetValues | None:
        """Return which values the program has changed since they were installed; None for none.

        However they were changed: through ``data`` as well, which no version counts.

        Raises:
            DenseChangedError: if some were, and there is no copy of what was installed.
        """
        if self._versions is not None and self._versions != self._versions_now():
            raise DenseChangedError(table=self.name, values=self.size)
        if self._installed is None:
            return None
        places, values, position = [], [], 0
        for parameter in self.parameters:
            start, position = position, position + parameter.numel()
            now = parameter.detach()
            if now.dtype == torch.float64:  # servers have floats
                now = now.to(torch.float32)
            flat = self._installed[start:position]
            if _are_same_bits(now, flat):
                continue
            was = flat.view(now.shape).to(now.dtype)
            if torch.equal(now, was):
                continue
            changed = (now != was).reshape(-1).nonzero().view(-1)
            places.append(changed.cpu().numpy() + start)
            values.append(to_host(now.reshape(-1)[changed], dtype=torch.float32).numpy())
        if not places:
            return None
        return SetValues(np.concatenate(places), np.concatenate(values))

    def note_sent(self, changes: SetValues) -> None:
        """Note that the servers get changes: they are what is installed."""
        assert self._installed is not None, "there were changes"
        device = self._installed.device
        places = to_device(torch.from_numpy(changes.places), device)
        values = to_device(torch.from_numpy(changes.values), device)
        self._installed = self._installed.index_copy(0, places, values)

    def install(self, values_P: NDArray[np.float32]) -> None:
        """Set the parameters to ``values_P``, float32 [P]."""
        devices = {parameter.device for parameter in self.parameters}
        flat = torch.from_numpy(values_P)
        if len(devices) == 1:
            flat = to_device(flat, devices.pop())
        self.install_from(flat)

    def install_from(self, flat: torch.Tensor) -> None:
        """Set the parameters to ``flat``, float32 [P], on any device; it may be kept."""
        if self.notes_changes:
            self._installed = flat
        position = 0
        with torch.no_grad():
            for parameter in self.parameters:
                part = flat[position : position + parameter.numel()]
                parameter.copy_(part.view(parameter.shape))
                position += parameter.numel()

    def overlaps(self, where: slice) -> Iterator[tuple[torch.Tensor, slice, slice]]:
        """Yield the parameters of a piece: which values of each, and where these are in it.

        Args:
            where: Which values of [P], with both bounds.
        """
        position = 0
        for parameter in self.parameters:
            start, position = position, position + parameter.numel()
            first, last = max(start, where.start), min(position, where.stop)
            if first < last:
                inside = slice(first - start, last - start)
                yield parameter, inside, slice(first - where.start, last - where.start)

    def piece(self, where: slice) -> NDArray[np.float32]:
        """Return some of the values, float32 [n]; they may be the parameter's own memory."""
        parts = [_part_of(each.detach(), inside) for each, inside, _ in self.overlaps(where)]
        return _joined(parts)

    def piece_of_gradients(self, where: slice) -> NDArray[np.float32]:
        """Return some of the gradients, float32 [n]; they may be the gradient's own memory."""
        parts = [
            np.zeros(inside.stop - inside.start, np.float32)
            if parameter.grad is None
            else _part_of(parameter.grad.detach(), inside)
            for parameter, inside, _ in self.overlaps(where)
        ]
        return _joined(parts)

    def install_piece(self, start: int, values: NDArray[np.float32]) -> None:
        """Set some of the values, float32 [n], from ``start`` on."""
        with torch.no_grad():
            for parameter, inside, outside in self.overlaps(slice(start, start + len(values))):
                piece = to_device(torch.from_numpy(values[outside]), parameter.device)
                if parameter.is_contiguous():
                    parameter.view(-1)[inside].copy_(piece)
                else:
                    places = torch.arange(inside.start, inside.stop, device=parameter.device)
                    parameter.put_(places, piece.to(parameter.dtype))

    @staticmethod
    def _flat(tensors: Sequence[torch.Tensor]) -> NDArray[np.float32]:
        if not tensors:
            return np.empty(0, np.float32)
        parts = [t.detach().reshape(-1).to(torch.float32) for t in tensors]
        if len({part.device for part in parts}) > 1:
            parts = [to_host(part, dtype=torch.float32) for part in parts]
        flat: NDArray[np.float32] = to_host(torch.cat(parts), dtype=torch.float32).numpy()
        return flat


_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def _are_same_bits(now: torch.Tensor, flat: torch.Tensor) -> bool:
    """Return whether float32 values in the host's memory are those of a contiguous vector.

    False where that isn't known without a copy. Every step asks this, of all parameters: torch
    shares the comparison among threads, which takes longer where others use the cores.
    """
    if now.dtype != torch.float32 or now.device.type != "cpu" or not now.is_contiguous():
        return False
    if flat.device.type != "cpu":
        return False
    differ: int = _compare(now.data_ptr(), flat.data_ptr(), 4 * now.numel())
    return not differ


def _part_of(tensor: torch.Tensor, where: slice) -> NDArray[np.float32]:
    """Return some of a tensor's values in the order of its dimensions, float32 [n]."""
    if tensor.is_contiguous():
        part = tensor.view(-1)[where]
    else:
        part = tensor.take(torch.arange(where.start, where.stop, device=tensor.device))
    found: NDArray[np.float32] = to_host(part, dtype=torch.float32).numpy()
    return found


def _joined(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)
