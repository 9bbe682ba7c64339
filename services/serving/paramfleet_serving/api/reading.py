"""What a lookup asks for, read from its body: JSON, or a safetensors file of ids.

Shape legend: q = ids of a table.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors.serving import LookupRequestError, LookupTooLargeError
from paramfleet_shared.files.tensorfile import MOST_DIMENSIONS, parse_tensors
from paramfleet_shared.values.texts import shown

__all__ = ["JSON", "RAW", "Asked", "check_size", "read_lookup", "read_object"]

JSON = "application/json"
RAW = "application/x-safetensors"

_JSON_BYTES = 28
"""That a number takes in JSON at most, with what stands around it."""

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """Ids by table, int64 [q] each, and the shapes that they came in."""

    ids: Mapping[str, NDArray[np.int64]]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def num_ids(self) -> int:
        """Return how many ids there are in all tables."""
        return sum(len(ids) for ids in self.ids.values())


def read_lookup(body: bytes, kind: str, *, max_ids: int) -> Asked:
    """Read a lookup.

    Args:
        body: Of the request.
        kind: Its content type.
        max_ids: Most ids in all tables together.

    Raises:
        LookupRequestError: naming what can't be read.
        LookupTooLargeError: if there are too many ids.
    """
    asked = _read_raw(body) if kind == RAW else _read_json(body, max_ids)
    _check_count(asked.num_ids, max_ids)
    return asked


def check_size(
    asked: Asked, widths: Mapping[str, int], kind: str = RAW, *, max_bytes: int
) -> None:
    """Pass if the rows that were asked for may be one answer.

    Args:
        asked: What was.
        widths: D of each of its tables.
        kind: Content type of the answer.
        max_bytes: Most bytes of rows, as the answer has them.

    Raises:
        LookupTooLargeError: if they may not.
        LookupRequestError: if the shape of a table's rows is more than an array can have.
    """
    each = _JSON_BYTES if kind == JSON else 4
    num_bytes = sum(each * widths[name] * len(ids) for name, ids in asked.ids.items())
    if num_bytes > max_bytes:
        raise LookupTooLargeError(what="bytes of rows", found=num_bytes, most=max_bytes)
    for name, shape in asked.shapes.items():
        if len(shape) >= MOST_DIMENSIONS:
            rule = f"must have fewer than {MOST_DIMENSIONS} dimensions, not {len(shape)}"
            raise LookupRequestError(where=f"ids of table {shown(name)}", rule=rule)
        span = math.prod(length or 1 for length in (*shape, widths[name], 4))
        if span > _MOST:
            rule = f"shape {list(shape)} with rows of {widths[name]} is no array's"
            raise LookupRequestError(where=f"ids of table {shown(name)}", rule=rule)


def read_object(
    body: bytes, must_have: Mapping[str, type], may_have: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """Read a JSON object with certain keys.

    Args:
        body: Of the request.
        must_have: The keys that it must have, and of which type each value is.
        may_have: Others.

    Raises:
        LookupRequestError: naming what is wrong.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise LookupRequestError(where="body", rule=f"is no JSON: {error}") from error
    if type(document) is not dict:
        raise LookupRequestError(where="body", rule="must be a JSON object")
    known = {**must_have, **(may_have or {})}
    for name in document:
        if name not in known:
            rule = f"has unknown key {shown(name)}; there are: {', '.join(known)}"
            raise LookupRequestError(where="body", rule=rule)
    for name, kind in known.items():
        if type(document.get(name)) is kind or not (name in must_have or name in document):
            continue
        word = {int: "a whole number", dict: "an object", str: "a text"}[kind]
        given = "must be given, as" if name in must_have else "must be"
        raise LookupRequestError(where=f"key {name!r}", rule=f"{given} {word}")
    return document


def _check_count(num_ids: int, max_ids: int) -> None:
    """Pass if there are few enough ids.

    Raises:
        LookupTooLargeError: if there aren't.
    """
    if num_ids > max_ids:
        raise LookupTooLargeError(what="ids", found=num_ids, most=max_ids)


def _read_json(body: bytes, max_ids: int) -> Asked:
    """Read JSON.

    Raises:
        LookupRequestError: naming what is wrong.
        LookupTooLargeError: if there are too many ids; none of them was looked at.
    """
    tables = read_object(body, {"tables": dict})["tables"]
    _check_count(sum(len(ids) for ids in tables.values() if type(ids) is list), max_ids)
    ids = {name: _ids_of(name, listed) for name, listed in tables.items()}
    return Asked(ids, {name: each.shape for name, each in ids.items()})


def _ids_of(name: str, listed: Any) -> NDArray[np.int64]:
    """Return a JSON list of ids, int64 [q].

    Raises:
        LookupRequestError: if it is none.
    """
    where = f"ids of table {shown(name)}"
    if type(listed) is not list:
        raise LookupRequestError(where=where, rule="must be a list")
    for place, each in enumerate(listed):
        if type(each) is not int or not _LEAST <= each <= _MOST:
            rule = f"[{place}] must be a whole number of 64 bits, not {shown(each)}"
            raise LookupRequestError(where=where, rule=rule)
    return np.array(listed, np.int64)


def _read_raw(body: bytes) -> Asked:
    """Read a safetensors file of int64 ids.

    Raises:
        LookupRequestError: naming what is wrong.
    """
    try:
        tensors = parse_tensors(body).tensors
    except ValueError as error:
        raise LookupRequestError(where="body", rule=f"is no safetensors: {error}") from error
    for name, ids in tensors.items():
        if ids.dtype != np.int64:
            rule = f"must be int64, not {ids.dtype}"
            raise LookupRequestError(where=f"ids of table {shown(name)}", rule=rule)
    flat = {name: ids.reshape(-1) for name, ids in tensors.items()}
    return Asked(flat, {name: ids.shape for name, ids in tensors.items()})
