"""Which kernels are compiled together, and which of them a job needs.

Most tables need the usual ones alone: those are compiled before a job starts. The others are
when a table that needs them is declared.
"""

from collections.abc import Collection
from typing import Literal, get_args

__all__ = ["ALL_PARTS", "OWN_ROWS", "USUAL", "WIRE", "Part", "parts_of"]

Part = Literal[
    "usual",
    "float16",
    "bfloat16",
    "wire",
    "coded-float32",
    "coded-float16",
    "coded-bfloat16",
    "own-rows",
]
"""``usual``: dense tables, and rows of float32. ``float16``, ``bfloat16``: rows that are kept
so. ``wire``: numbers that travel in fewer bits. ``coded-``: rows of a storage that are read and
stepped in bfloat16 as they travel. ``own-rows``: a worker's own rows, stepped and compared."""

ALL_PARTS: tuple[Part, ...] = get_args(Part)

USUAL: Part = "usual"
WIRE: Part = "wire"
OWN_ROWS: Part = "own-rows"

_OF_STORAGE: dict[str, tuple[Part, Part]] = {
    "float32": (USUAL, "coded-float32"),
    "float16": ("float16", "coded-float16"),
    "bfloat16": ("bfloat16", "coded-bfloat16"),
}


def parts_of(storages: Collection[str], wire: str) -> tuple[Part, ...]:
    """Return which parts tables need beside the usual one.

    Args:
        storages: Of the sparse ones.
        wire: How their numbers travel.
    """
    found: list[Part] = [] if wire == "float32" else [WIRE]
    for storage in sorted(set(storages)):
        plain, coded = _OF_STORAGE[storage]
        if plain != USUAL:
            found.append(plain)
        if wire != "float32":
            found.append(coded)
    return tuple(found)
