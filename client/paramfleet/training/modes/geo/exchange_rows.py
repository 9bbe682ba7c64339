"""Which rows an exchange's answer is about. Sans-io."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import are_bounds, unpack_ids

__all__ = ["received_ids", "refused_ids", "removed_ids"]


def received_ids(answer: Message, index: int) -> NDArray[np.int64]:
    """Return the ids of part ``index`` of an exchange's answer, int64 [n], one a row.

    Raises:
        MalformedMessageError: if they are packed, but not as they should be, or named by a
            part that hasn't as many.
    """
    about, num_rows = answer.fields["parts"][index], len(answer.tensors[f"{index}.rows"])
    coded = about.get("ids")
    if coded == "same":
        return _same_ids(answer, index, about.get("as"), num_rows)
    found = answer.tensors[f"{index}.ids"]
    if coded != "delta":
        return found
    offsets = answer.tensors[f"{index}.offsets"]
    fits = are_bounds(offsets, num_rows)
    ids = unpack_ids(found, offsets) if fits else None
    if ids is None:
        raise MalformedMessageError(where=f"tensor '{index}.ids'", rule="must be packed ids")
    return ids


def removed_ids(answer: Message, index: int) -> NDArray[np.int64]:
    """Return the ids of part ``index`` whose rows were removed, int64 [n].

    Raises:
        MalformedMessageError: if they aren't int64 [n].
    """
    return _ids_in(answer, f"{index}.removed")


def refused_ids(answer: Message, index: int) -> NDArray[np.int64]:
    """Return the ids of part ``index`` that were sent and got no row, int64 [n].

    Raises:
        MalformedMessageError: if they aren't int64 [n].
    """
    return _ids_in(answer, f"{index}.refused")


def _ids_in(answer: Message, name: str) -> NDArray[np.int64]:
    found = answer.tensors.get(name)
    if found is None:
        return np.empty(0, np.int64)
    if found.dtype != np.int64 or found.ndim != 1:
        raise MalformedMessageError(where=f"tensor {name!r}", rule="must be int64 [n]")
    return found


def _same_ids(answer: Message, index: int, other: object, num_rows: int) -> NDArray[np.int64]:
    """Return the ids of an earlier part of an answer, which part ``index`` has too.

    Raises:
        MalformedMessageError: if that part isn't there, or hasn't as many.
    """
    if isinstance(other, int) and 0 <= other < index and f"{other}.ids" in answer.tensors:
        ids = received_ids(answer, other)
        if len(ids) == num_rows:
            return ids
    raise MalformedMessageError(where=f"part {index}", rule="must name a part of as many ids")
