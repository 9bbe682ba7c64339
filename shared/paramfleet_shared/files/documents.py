"""JSON documents and whole numbers from files, read with care.

Whoever can write a file can nest it as deep, or make its numbers as large, as the reader takes.
What passes here is bounded: it can be walked, shown and converted without errors of the
interpreter's own.
"""

import json
import math
from pathlib import Path
from typing import Any

from paramfleet_shared.files.regular_files import read_regular
from paramfleet_shared.values.texts import shortened, shown

__all__ = ["LARGEST_COUNT", "MAX_DOCUMENT_BYTES", "read_content", "read_document", "whole"]

MAX_DOCUMENT_BYTES = 64 << 20
"""Of one document: some 200,000 files of a checkpoint."""

MAX_DEPTH = 128
"""Of lists and maps in each other. A plain value, 32 deep, takes up to three for each."""

MAX_BITS = 1023
"""Of a whole number: a float takes it."""

LARGEST_COUNT = 2**53
"""Of bytes, rows and steps: a float64, which optimizers count with, has each up to this."""


def read_content(path: Path, *, most_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the bytes of a document's file, for ``read_document`` with the same bound.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't a regular file.
    """
    return read_regular(path, most_bytes=most_bytes + 1)


def read_document(content: bytes, *, most_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """Return what a JSON document says, in UTF-8.

    Raises:
        ValueError: if it is none, larger than it may be, nested deeper than ``MAX_DEPTH``, or
            has a number that is infinite, NaN or beyond a float's range.
    """
    if len(content) > most_bytes:
        rule = f"is larger than {most_bytes} bytes"
        raise ValueError(rule)
    try:
        document = json.loads(
            content.decode("utf-8"),
            parse_constant=_finite,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(document)
    return document


def whole(value: Any, name: str, *, least: int = 0, most: int = LARGEST_COUNT) -> int:
    """Return a whole number, which errors call by its name.

    Raises:
        ValueError: if it is something else, or not from ``least`` to ``most``.
    """
    if type(value) is not int or not least <= value <= most:
        rule = f"{name} = {shown(value)} is no whole number from {least} to {most}"
        raise ValueError(rule)
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        rule = f"{shortened(text)} is no finite number"
        raise ValueError(rule)
    return number


def _bounded(text: str) -> int:
    number = int(text)
    if number.bit_length() > MAX_BITS:
        rule = f"{shortened(text)} has more than {MAX_BITS} bits"
        raise ValueError(rule)
    return number


_TOO_DEEP = f"is nested deeper than {MAX_DEPTH}"


def _check_depth(document: Any) -> None:
    """Pass if a document is nested little enough.

    Raises:
        ValueError: if it isn't.
    """
    level, depth = [document], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner.extend(each.values())
            elif type(each) is list:
                inner.extend(each)
        level, depth = [each for each in inner if type(each) in {dict, list}], depth + 1
