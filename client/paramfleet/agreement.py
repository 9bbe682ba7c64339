"""How workers come to hold the same buffers: each says what it has, and all take one result.

Each worker's payload has, for every buffer, a hash, and the numbers too if they have changed
since the workers agreed last: so what is constant costs 32 bytes. Of a buffer that isn't the
same everywhere, all take the same, reckoned from the same payloads: the mean of floating-point
and complex numbers, the largest of integers (so counters of batches stay counters), true where
any is. A worker that changed nothing since the last agreement doesn't count. Of extra states,
which can't be averaged, all take those of the lowest rank that changed its own.

Nothing here waits or sends.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgpack
import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.modulestate import Buffer, BufferMismatchError, has_state, install, state_of
from paramfleet.plain import from_document, to_document

__all__ = ["Agreement"]

log = logging.getLogger(__name__)

_EXTRA = "extra state of "
"""Before a module's path, where a buffer has its name alone."""


class _Entry(NamedTuple):
    """What a worker says of one buffer or extra state."""

    kind: str
    """Dtype and shape of a buffer; empty for an extra state."""

    digest: bytes
    content: list[Any] | None
    """What others make the value of; None if it isn't sent."""


class Agreement:
    """One worker's part; the training thread owns it.

    Args:
        model: Whose buffers; None has none.
    """

    def __init__(self, model: torch.nn.Module | None) -> None:
        self.model = model
        self._agreed: dict[str, bytes] = {}
        self.loaded_from = ""
        """Folder that the pservers' tables were loaded from; empty for none."""

    @property
    def has_state(self) -> bool:
        """Whether there is anything to agree on."""
        return self.model is not None and has_state(self.model)

    def payload(self, *, say: Literal["changed", "all", "none"] = "changed") -> bytes:
        """Return what this worker has, for ``take`` of all.

        Args:
            say: Of which buffers to send the numbers: of those that changed since all agreed;
                of all, or of none, where one worker's are to be taken.
        """
        agreed = self._agreed if say == "changed" else {}
        entries = {
            name: [e.kind, e.digest, None if agreed.get(name) == e.digest else e.content]
            for name, e in self._entries().items()
        }
        if say == "none":
            entries = {
                name: [kind, digest, None] for name, (kind, digest, _) in entries.items()
            }
        packed: bytes = msgpack.packb(entries)
        return packed

    def take(self, payloads: Sequence[bytes], *, others: str = "another worker") -> None:
        """Set buffers and extra states to what follows from all workers' payloads.

        Args:
            payloads: In the order of ranks, this worker's among them.
            others: Whose they are, for errors.

        Raises:
            BufferMismatchError: if a buffer's shape or dtype isn't the same everywhere; nothing
                was changed.
        """
        if self.model is None:
            return
        own = self._entries()
        said = [_unpacked(payload) for payload in payloads]
        tensors: dict[str, torch.Tensor] = {}
        extra: dict[str, Any] = {}
        for name, entry in own.items():
            found = [each[name] for each in said if name in each]
            for other in found:
                if other.kind != entry.kind:
                    raise BufferMismatchError(
                        buffer=name, have=entry.kind, got=other.kind, where=others
                    )
            sent = [each.content for each in found if each.content is not None]
            if not sent or all(each.digest == entry.digest for each in found):
                continue
            if entry.kind:
                tensors[name] = _together([_buffer_of(content) for content in sent])
            else:
                document, arrays = sent[0]
                extra[name[len(_EXTRA) :]] = from_document(document, _arrays_of(arrays))
        install(self.model, tensors, extra)
        self.settle()

    def settle(self) -> None:
        """Note that all workers hold by now what this one does."""
        self._agreed = {name: entry.digest for name, entry in self._entries().items()}

    def _entries(self) -> dict[str, _Entry]:
        if self.model is None:
            return {}
        state = state_of(self.model)
        entries = {
            name: _entry(buffer.kind, _content_of(buffer))
            for name, buffer in state.buffers.items()
        }
        for path, value in state.extra.items():
            arrays: dict[str, NDArray[Any]] = {}
            try:
                document = to_document(value, arrays)
            except ValueError as error:
                log.debug("worker.extra_state_not_shared", extra={"reason": str(error)})
                continue
            content = [document, {name: _packed(array) for name, array in arrays.items()}]
            entries[_EXTRA + path] = _entry("", content)
        return entries


def _entry(kind: str, content: list[Any]) -> _Entry:
    return _Entry(kind, hashlib.sha256(msgpack.packb(content)).digest(), content)


def _together(buffers: Sequence[Buffer]) -> torch.Tensor:
    """Return what all workers are to hold of one buffer."""
    values = [buffer.tensor() for buffer in buffers]
    if len(values) == 1:
        return values[0]
    dtype = values[0].dtype
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        total = torch.zeros(values[0].shape, dtype=wide)
        for value in values:
            total += value.to(wide)
        return (total / len(values)).to(dtype)
    largest = np.maximum.reduce([value.numpy() for value in values])
    return torch.from_numpy(np.asarray(largest))


def _content_of(buffer: Buffer) -> list[Any]:
    return [buffer.dtype, list(buffer.shape), *_packed(buffer.carrier)]


def _buffer_of(content: list[Any]) -> Buffer:
    dtype, shape, *packed = content
    return Buffer(dtype=dtype, shape=tuple(shape), carrier=_unpacked_array(packed))


def _packed(array: NDArray[Any]) -> list[Any]:
    return [array.dtype.str, list(array.shape), array.tobytes()]


def _unpacked_array(packed: Sequence[Any]) -> NDArray[Any]:
    dtype, shape, data = packed
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)


def _arrays_of(packed: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {name: _unpacked_array(each) for name, each in packed.items()}


def _unpacked(payload: bytes) -> dict[str, _Entry]:
    return {name: _Entry(*entry) for name, entry in msgpack.unpackb(payload).items()}
