"""What the files of a table must be together: each value once, each shard at one server."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Doubled",
    "doubled_ids",
    "range_problems",
    "server_of",
    "shards_of_several",
    "wrong_buffer",
]

_STATISTICS = frozenset({"running_mean", "running_var"})
"""Torch's names for those of its normalizations, which no model can use unless finite."""

_SERVER = re.compile(r"\.server(\d{1,9})\.")


class Doubled(NamedTuple):
    """An id that has more than one row."""

    id: int
    file: int
    """The place of the later file in the list."""

    other: int
    """The place of an earlier one, or the same."""


def server_of(name: str) -> int | None:
    """Return the pserver that wrote a file, by the file's name; None if no pserver did."""
    found = _SERVER.search(name)
    return None if found is None else int(found[1])


def doubled_ids(
    ids: NDArray[np.int64], files: NDArray[np.int64], *, most: int = 10
) -> list[Doubled]:
    """Return ids that are there more than once.

    Args:
        ids: int64 [n].
        files: int64 [n]: the place of each id's file in a list.
        most: How many are returned.
    """
    order = np.argsort(ids, kind="stable")
    twice = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])[:most]
    pairs = ((order[place], order[place + 1]) for place in twice.tolist())
    return [
        Doubled(int(ids[first]), max(one, other), min(one, other))
        for first, second in pairs
        for one, other in [(int(files[first]), int(files[second]))]
    ]


def shards_of_several(
    has: NDArray[np.bool_], servers: Sequence[int | None]
) -> Mapping[int, list[int]]:
    """Return the shards of which several servers have rows, each with those servers.

    Args:
        has: bool [files, shards]: which file has rows of which shard.
        servers: The server of each file; files of none are left out.
    """
    found: dict[int, list[int]] = {}
    known = sorted({server for server in servers if server is not None})
    by_server = [has[[each == server for each in servers]].any(axis=0) for server in known]
    if not by_server:
        return found
    at = np.stack(by_server)
    for shard in np.flatnonzero(at.sum(axis=0) > 1).tolist():
        found[shard] = [known[place] for place in np.flatnonzero(at[:, shard]).tolist()]
    return found


def range_problems(ranges: Iterable[tuple[int, int, str]], size: int) -> list[tuple[str, str]]:
    """Return what is wrong with the ranges of a dense table's files.

    Args:
        ranges: The first value's place, that behind the last, and the file's name, of each.
        size: How many values the table has.

    Returns:
        The file with a problem, empty for the table as a whole, and the problem.
    """
    problems, end = [], 0
    for start, stop, name in sorted(ranges):
        if start > end:
            problems.append(("", f"no file has the values from {end} to {start}"))
        if start < min(end, stop):
            problems.append((name, f"another file has the values from {start}, too"))
        end = max(end, stop)
    if end < size:
        problems.append(("", f"no file has the values from {end} to {size}"))
    return problems


def wrong_buffer(name: str, dtype: str, carrier: NDArray[Any]) -> str:
    """Return what is wrong with the numbers of a model's buffer; empty if nothing is.

    A load refuses, or leaves out, what this names.

    Args:
        name: As in the model's ``state_dict``.
        dtype: Torch's name of it.
        carrier: Its numbers, as a file has them.
    """
    numbers: NDArray[Any] | None = None
    if carrier.dtype.kind == "f":  # complex ones are pairs of these
        numbers = carrier
    elif dtype == "bfloat16" and carrier.dtype.itemsize == 2:
        numbers = (carrier.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if numbers is None:
        return ""
    own = name.rpartition(".")[2]
    if own not in _STATISTICS:
        return "holds NaN" if bool(np.isnan(numbers).any()) else ""
    if not bool(np.isfinite(numbers).all()):
        return "holds infinities or NaN"
    is_negative = not dtype.startswith("complex") and bool((numbers < 0).any())
    return "holds negative variances" if own == "running_var" and is_negative else ""
