"""The ids of a sparse table's files: each id is in one file, and is one that the table takes.

n = rows of a file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.manifest import CheckpointDamagedError, SavedFile

__all__ = ["check_each_once", "check_not_negative", "refuse_doubled"]


def check_each_once(
    table: str, paths: Sequence[Path], ids: Sequence[NDArray[np.int64]]
) -> None:
    """Pass if no id is in two files.

    Args:
        table: The table.
        paths: Of its files.
        ids: Those that count in each file, int64 [n], none twice.

    Raises:
        CheckpointDamagedError: naming the later file, the id, and the earlier file.
    """
    whole = np.concatenate([np.empty(0, np.int64), *ids])
    order = np.argsort(whole, kind="stable")
    twice = np.flatnonzero(whole[order[1:]] == whole[order[:-1]])
    if not twice.size:
        return
    ends = np.cumsum([len(each) for each in ids])
    first, second = (
        int(np.searchsorted(ends, place, side="right")) for place in order[twice[0] :][:2]
    )
    found = int(whole[order[twice[0]]])
    _refuse(paths[second], table, found, paths[first].name)


def refuse_doubled(
    directory: Path, file: SavedFile, found: int, other: str = "another file"
) -> NoReturn:
    """Refuse an id that is in a file, and in an earlier one.

    Raises:
        CheckpointDamagedError: naming all three.
    """
    _refuse(directory / file.name, file.table, found, other)


def _refuse(path: Path, table: str, found: int, other: str) -> NoReturn:
    reason = f"id {found} of table {table!r} is in {other}, too"
    raise CheckpointDamagedError(path=str(path), reason=reason)


def check_not_negative(directory: Path, file: SavedFile, ids: NDArray[np.int64]) -> None:
    """Pass if no id of a file is negative.

    Args:
        directory: The checkpoint's folder.
        file: The file of a table that takes no negative ids.
        ids: Its ids, int64 [n].

    Raises:
        CheckpointDamagedError: naming the file and the least id.
    """
    least = int(ids.min()) if ids.size else 0
    if least < 0:
        reason = (
            f"id {least} of table {file.table!r} is negative, which the model's module takes "
            "only with negative_ids=True"
        )
        raise CheckpointDamagedError(path=str(directory / file.name), reason=reason)
