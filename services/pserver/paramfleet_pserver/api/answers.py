"""What the answer to an exchange says: ids that several tables share travel once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.api.reading import tensors_of
from paramfleet_pserver.commands.taking import PartReply

__all__ = ["described"]


def described(
    replies: Sequence[PartReply],
) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """Return what an exchange's answer says of each part, and its tensors."""
    parts: list[dict[str, Any]] = []
    tensors: dict[str, NDArray[Any]] = {}
    for index, reply in enumerate(replies):
        about: dict[str, Any] = {"batch": reply.batch, "more": reply.more}
        tensors |= tensors_of(index, reply.rows)
        same = next((i for i in range(index) if _has_same_ids(replies[i], reply)), None)
        if same is not None:
            about |= {"ids": "same", "as": same}
        elif reply.packed is not None and reply.offsets is not None:
            about["ids"] = "delta"
            tensors[f"{index}.ids"] = reply.packed
            tensors[f"{index}.offsets"] = reply.offsets
        elif reply.ids is not None:
            tensors[f"{index}.ids"] = reply.ids
        if reply.removed is not None:
            tensors[f"{index}.removed"] = reply.removed
        if reply.refused is not None:
            tensors[f"{index}.refused"] = reply.refused
        parts.append(about)
    return parts, tensors


def _has_same_ids(earlier: PartReply, reply: PartReply) -> bool:
    """Return whether ids that are packed twice are the same."""
    if earlier.packed is None or reply.packed is None or not len(reply.rows.rows):
        return False
    assert earlier.offsets is not None, "packed ids are bounded"
    assert reply.offsets is not None, "packed ids are bounded"
    same_bounds = np.array_equal(earlier.offsets, reply.offsets)
    return same_bounds and np.array_equal(earlier.packed, reply.packed)
