"""How workers come to hold the same buffers: each says what it has, and all take one result.

Each worker's payload has, for every buffer, a hash, and the numbers too if they have changed
since the workers agreed last: so what is constant costs 32 bytes. The numbers are
``MAX_BYTES`` at most, the small buffers first. Of a buffer that isn't the same everywhere,
all take the same, reckoned from the same payloads: the mean of floating-point and complex
numbers, the largest of integers (so counters of batches stay counters), true where any is. A
worker that changed nothing since the last agreement doesn't count. Of batch statistics over
all workers, the newest count: they are the same in all that were there. Of extra states, which
can't be averaged, all take those of the lowest rank that changed its own.

Nothing here waits or sends.
"""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgpack
import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.model_state.batch_norm import ages_of
from paramfleet.model_state.module_state import (
    Buffer,
    BufferMismatchError,
    has_state,
    install,
    state_of,
)
from paramfleet.model_state.one_checkpoint import LoadedFrom
from paramfleet.model_state.plain import from_document, to_document
from paramfleet_shared.errors import ContractError

__all__ = ["MAX_BYTES", "Agreement", "BufferTooLargeError"]

log = logging.getLogger(__name__)

MAX_BYTES = 32 << 20
"""Of numbers that a worker sends at a time: each worker reads those of all, through Redis."""

_EXTRA = "extra state of "
"""Before a module's path, where a buffer has its name alone."""


class BufferTooLargeError(ContractError):
    """A buffer differs between workers, and is too large to be sent; nothing was changed."""

    code = "contract.buffer_too_large"
    buffer: str
    size: int
    limit: int
    sentence = (
        "buffer {buffer!r} isn't the same in all workers, and its {size:,} bytes, beside "
        "smaller ones, are more than the {limit:,} that a worker sends: give all workers "
        "the same values, or register it with persistent=False"
    )


class _Entry(NamedTuple):
    """What a worker has of one buffer or extra state."""

    kind: str
    """Dtype and shape of a buffer; empty for an extra state."""

    digest: bytes
    packed: bytes
    """What others make the value of."""

    age: int = 0
    """Of batch statistics over all workers: how many batches they are of."""


class _Said(NamedTuple):
    """What a worker says of it."""

    kind: str
    digest: bytes
    content: bytes | bool
    """What the value is made of. True says that it is too large to be sent, False that it
    needn't be."""

    age: int = 0


class Agreement:
    """One worker's part; the training thread owns it.

    Args:
        model: Whose buffers; None has none.
        max_bytes: Of numbers in one payload.
    """

    def __init__(self, model: torch.nn.Module | None, *, max_bytes: int = MAX_BYTES) -> None:
        self.model = model
        self._max_bytes = max_bytes
        self._agreed: dict[str, bytes] = {}
        self.loaded_from = LoadedFrom()
        """What the pservers' tables were loaded from."""

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
        entries = self._entries()
        left, sent = self._max_bytes, {}
        for name in sorted(entries, key=lambda name: len(entries[name].packed)):
            entry = entries[name]
            content: bytes | bool = entry.packed
            if say == "none" or agreed.get(name) == entry.digest:
                content = False
            elif len(entry.packed) > left:
                content = True
            else:
                left -= len(entry.packed)
            sent[name] = [entry.kind, entry.digest, content, entry.age]
        packed: bytes = msgpack.packb(sent)
        return packed

    def take(
        self,
        payloads: Sequence[bytes],
        *,
        others: str = "another worker",
        spares: bool = False,
    ) -> list[ContractError]:
        """Set buffers and extra states to what follows from all workers' payloads.

        Args:
            payloads: In the order of ranks, this worker's among them.
            others: Whose they are, for errors.
            spares: Leave a buffer that can't be agreed on as it is.

        Returns:
            Why it couldn't, of each buffer that was left as it was.

        Raises:
            BufferMismatchError: if a buffer's shape or dtype isn't the same everywhere; nothing
                was changed.
            BufferTooLargeError: if one that isn't the same everywhere is too large to be sent;
                nothing was changed.
        """
        if self.model is None:
            return []
        said = [_unpacked(payload) for payload in payloads]
        tensors: dict[str, torch.Tensor] = {}
        extra: dict[str, Any] = {}
        problems: list[ContractError] = []
        for name, own in self._entries().items():
            found = [each[name] for each in said if name in each]
            problem = self._problem(name, own, found, others=others)
            if problem is not None and not spares:
                raise problem
            if problem is not None:
                problems.append(problem)
                continue
            newest = max((each.age for each in found), default=0)
            sent = [
                each.content
                for each in found
                if isinstance(each.content, bytes) and each.age == newest
            ]
            if not sent or all(each.digest == own.digest for each in found):
                continue
            if own.kind:
                tensors[name] = _together([_buffer_of(content) for content in sent])
            else:
                extra[name.removeprefix(_EXTRA)] = _extra_of(sent[0])
        install(self.model, tensors, extra)
        self.settle()
        return problems

    @property
    def agreed(self) -> dict[str, bytes]:
        """Return by what the buffers are known that all workers held last."""
        return dict(self._agreed)

    @agreed.setter
    def agreed(self, known: dict[str, bytes]) -> None:
        self._agreed = dict(known)

    def settle(self) -> None:
        """Note that all workers hold by now what this one does."""
        self._agreed = {name: entry.digest for name, entry in self._entries().items()}

    def _problem(
        self, name: str, own: _Entry, found: Sequence[_Said], *, others: str
    ) -> ContractError | None:
        """Return why a buffer can't be agreed on, if it can't."""
        for each in found:
            if each.kind != own.kind:
                return BufferMismatchError(
                    buffer=name, have=own.kind, got=each.kind, where=others
                )
        is_same = all(each.digest == own.digest for each in found)
        if is_same or not any(each.content is True for each in found):
            return None
        return BufferTooLargeError(buffer=name, size=len(own.packed), limit=self._max_bytes)

    def _entries(self) -> dict[str, _Entry]:
        if self.model is None:
            return {}
        state = state_of(self.model)
        ages = dict(ages_of(self.model))
        entries = {
            name: _entry(buffer.kind, _content_of(buffer))._replace(age=ages.get(name, 0))
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
    packed: bytes = msgpack.packb(content)
    return _Entry(kind, hashlib.sha256(packed).digest(), packed)


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


def _buffer_of(content: bytes) -> Buffer:
    dtype, shape, *packed = msgpack.unpackb(content)
    return Buffer(dtype=dtype, shape=tuple(shape), carrier=_unpacked_array(packed))


def _extra_of(content: bytes) -> Any:
    document, packed = msgpack.unpackb(content)
    arrays = {name: _unpacked_array(each) for name, each in packed.items()}
    return from_document(document, arrays)


def _packed(array: NDArray[Any]) -> list[Any]:
    return [array.dtype.str, list(array.shape), array.tobytes()]


def _unpacked_array(packed: Sequence[Any]) -> NDArray[Any]:
    dtype, shape, data = packed
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)


def _unpacked(payload: bytes) -> dict[str, _Said]:
    return {name: _Said(*said) for name, said in msgpack.unpackb(payload).items()}
