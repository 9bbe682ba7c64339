"""How a command makes a checkpoint: beside its place, and under its name when it is whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from paramfleet.session.checkpoint.whole_folders import (
    discard,
    end_owning,
    give_name,
    held,
    naming,
    own,
    temporary_beside,
)
from paramfleet_shared.checkpoint.manifest import FilePart, SavedFile, write_part
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.app.checkpoints.mapped import row_bytes

__all__ = ["TableWriter", "new_checkpoint"]

_FILE_BYTES = 128 << 20
"""Of a file that is written, about."""


@contextmanager
def new_checkpoint(final: Path, *, check: Callable[[], None] | None = None) -> Iterator[Path]:
    """Give a folder in which a checkpoint is written; after an error nothing is changed.

    Args:
        final: Its place, as of ``folder_to_save``; what is there is replaced at the end.
        check: Called before it is; refuses by an error.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    temporary, mark = temporary_beside(final), None
    try:
        with naming(final), held(temporary):
            mark = own(temporary)
            yield temporary
        if check is not None:
            check()
        give_name(temporary, final)
    except BaseException:
        discard(temporary, mark)
        raise
    end_owning(final, mark)
    if temporary != final:
        discard(temporary)


class TableWriter:
    """Writes rows of a table to files of about the same size.

    Args:
        target: Their folder.
        spec: The table.
        stem: What their names begin with.
    """

    def __init__(self, target: Path, spec: TableSpec, stem: str) -> None:
        self._target, self._spec, self._stem = target, spec, stem
        self._most = max(1, _FILE_BYTES // row_bytes(spec))
        self._pieces: list[FilePart] = []
        self._written: list[SavedFile] = []

    def take(self, part: FilePart) -> None:
        """Write rows, as soon as there are enough for a file."""
        self._pieces.append(part)
        if sum(each.num_rows for each in self._pieces) >= self._most:
            self._write()

    def end(self) -> list[SavedFile]:
        """Write what is left; return all files."""
        if self._pieces:
            self._write()
        return self._written

    def _write(self) -> None:
        whole = _joined(self._pieces)
        self._pieces = []
        if whole.num_rows:
            name = f"{self._stem}.{len(self._written):05d}.safetensors"
            self._written.append(write_part(self._target, name, self._spec, whole))


def _joined(parts: list[FilePart]) -> FilePart:
    return FilePart(
        ids=np.concatenate([part.ids for part in parts if part.ids is not None]),
        values=np.concatenate([part.values for part in parts]),
        states=np.concatenate([part.states for part in parts]),
    )
