"""Tensors of a request as parts of tables: shapes, dtypes and lengths are judged here."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.tables.table import SparseTable, Table
from paramfleet_shared.net.wire.limits import DEFAULT_LIMITS
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.codecs.catalog import CODECS
from paramfleet_shared.tables.encoding import (
    Encoded,
    WireDtype,
    are_bounds,
    scale_shape,
    unpack_ids,
)
from paramfleet_shared.tables.partition import are_in_shards
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rowstore import RowShapeError

__all__ = ["MAX_PACKED_IDS", "PartIds", "change_of", "tensor_of"]

MAX_PACKED_IDS = DEFAULT_LIMITS.max_body_bytes // 8
"""Packed ids of a request may stand for so many: as many as a body can hold plain."""


def tensor_of(
    message: Message, name: str, table: Table, *, dtype: str, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """Return a tensor of a known dtype and shape (None: any length).

    Raises:
        MalformedMessageError: if there is none of that name.
        RowShapeError: if it has another dtype or shape.
    """
    array = message.tensors.get(name)
    if array is None:
        raise MalformedMessageError(where=f"tensor {name!r}", rule="is missing")
    have = array.shape
    fits = have == shape
    if not fits and len(have) == len(shape):
        fits = True
        for want, length in zip(shape, have, strict=True):
            fits &= want is None or want == length
    if array.dtype != dtype or not fits:
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise RowShapeError(
            table=table.spec.name,
            expected=f"{name} {dtype} [{wanted}]",
            got=f"{array.dtype} [{', '.join(map(str, array.shape))}]",
        )
    return array


def change_of(
    message: Message, name: str, table: Table, *, wire: WireDtype, shape: tuple[int, ...]
) -> Encoded:
    """Return the gradients or differences of a part, as they travelled.

    Args:
        message: The request.
        name: The tensor's name, ``<part>.<what>``; scales are ``<part>.scales``.
        table: Whose part it is.
        wire: How the numbers travelled.
        shape: Rows [n, D] or values [P].

    Raises:
        MalformedMessageError: if a tensor is missing.
        RowShapeError: if one has another dtype or shape.
    """
    codec = CODECS[wire]
    rows = tensor_of(message, name, table, dtype=codec.stored, shape=shape)
    if not codec.has_scales:
        return Encoded(rows)
    scales = f"{name.partition('.')[0]}.scales"
    bits = tensor_of(message, scales, table, dtype="uint8", shape=scale_shape(shape))
    return Encoded(rows, bits)


class PartIds:
    """The ids of a request's parts. What is packed is bounded over all of them.

    Args:
        message: The request.
        max_packed: Ids that all packed tensors together may stand for.
    """

    def __init__(self, message: Message, *, max_packed: int = MAX_PACKED_IDS) -> None:
        self._message = message
        self._max_packed = max_packed
        self._num_packed = 0

    def read(
        self,
        index: int,
        table: SparseTable,
        *,
        packed: bool,
        names: tuple[str, str] = ("ids", "offsets"),
    ) -> RowIds:
        """Return the ids of a part, with the bounds of this server's shards.

        Args:
            index: Which part; each is read once.
            table: Whose part it is.
            packed: Whether the ids travelled as ``pack_ids`` packs them.
            names: What the tensors of the ids and of the bounds are called.

        Raises:
            MalformedMessageError: if a tensor is missing, the bounds don't rise from 0 to
                the number of ids, packed ids aren't what they should be or too many, or an
                id lies in another shard than its own.
            RowShapeError: if a tensor has another dtype or shape.
        """
        name, bounds = (f"{index}.{each}" for each in names)
        offsets = self._bounds(bounds, table)
        ids = self._ids(name, table, offsets, packed=packed)
        _check_shards(name, table, ids, offsets)
        return RowIds(ids, offsets)

    def read_known(
        self, index: int, table: SparseTable, *, rank: int, book: int, base: int | None
    ) -> RowIds:
        """Return the ids of a part, some of which travelled as numbers, as ``read`` does.

        Args:
            index: Which part; each is read once.
            table: Whose part it is.
            rank: Whose numbers they are.
            book: In which of the worker's books.
            base: The number that the first of the others gets; None for none.

        Raises:
            KnownIdsGoneError: if the numbers aren't known here.
            MalformedMessageError: as ``read``.
            RowShapeError: as ``read``.
        """
        offsets = self._bounds(f"{index}.offsets", table)
        known = self._bounds(f"{index}.known", table)
        name = f"{index}.numbers"
        numbers = self._ids(name, table, known, packed=self._is_packed(name))
        name = f"{index}.ids"
        others = self._ids(name, table, offsets - known, packed=self._is_packed(name))
        _check_shards(name, table, others, offsets - known)
        named = table.known.read(rank, book, numbers, others, base)
        _check_shards(f"{index}.numbers", table, named, known)
        ids = np.empty(len(named) + len(others), np.int64)
        places = zip(offsets[:-1].tolist(), offsets[1:].tolist(), known.tolist(), strict=False)
        for shard, (start, stop, first) in enumerate(places):
            middle = start + int(known[shard + 1]) - first
            ids[start:middle] = named[first : known[shard + 1]]
            ids[middle:stop] = others[start - first : stop - known[shard + 1]]
        return RowIds(ids, offsets)

    def _is_packed(self, name: str) -> bool:
        found = self._message.tensors.get(name)
        return found is not None and found.dtype == np.uint8

    def _bounds(self, name: str, table: SparseTable) -> NDArray[np.int64]:
        bounds = (table.blocks[-1].shards.stop + 1,)
        return tensor_of(self._message, name, table, dtype="int64", shape=bounds)

    def _ids(
        self, name: str, table: SparseTable, offsets: NDArray[np.int64], *, packed: bool
    ) -> NDArray[np.int64]:
        """Return ids, or numbers, that these bounds are of.

        Raises:
            MalformedMessageError: as ``read``.
        """
        dtype = "uint8" if packed else "int64"
        found = tensor_of(self._message, name, table, dtype=dtype, shape=(None,))
        num = int(offsets[-1]) if packed else len(found)
        most = self._max_packed - self._num_packed if packed else num
        if not are_bounds(offsets, num) or num > most:
            rule = f"(at most {most} here)" if packed else f"({num})"
            raise MalformedMessageError(
                where=f"bounds of tensor {name!r}",
                rule=f"must rise from 0 to the number of ids {rule}",
            )
        if not packed:
            return found
        self._num_packed += num
        ids = unpack_ids(found, offsets)
        if ids is None:
            raise MalformedMessageError(
                where=f"tensor {name!r}", rule=f"must be {num} packed ids"
            )
        return ids


def _check_shards(
    name: str, table: SparseTable, ids: NDArray[np.int64], offsets: NDArray[np.int64]
) -> None:
    """Pass if bounds put each id into the shard that it belongs to.

    A row of another's would be there twice, and no checkpoint of both could be loaded.

    Raises:
        MalformedMessageError: if one lies elsewhere.
    """
    first, num_shards = table.hosted.start, table.spec.num_shards
    if not are_in_shards(ids, offsets, first=first, num_shards=num_shards):
        raise MalformedMessageError(
            where=f"bounds of tensor {name!r}",
            rule=f"must put each id into the one of {num_shards} shards that it belongs to",
        )
