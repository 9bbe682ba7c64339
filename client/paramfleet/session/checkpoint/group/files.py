"""The files of a checkpoint's workers: read when something of them is needed, and proved."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramfleet.model_state.plain import from_document
from paramfleet.session.checkpoint.group.manifest import Chunk, GroupManifest
from paramfleet_shared.checkpoint.manifest import CheckpointDamagedError, read_arrays
from paramfleet_shared.values.texts import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["WorkerFiles"]


class WorkerFiles:
    """Reads them; the one that was read last is kept.

    Args:
        folder: The checkpoint's.
        manifest: Its.
    """

    def __init__(self, folder: Path, manifest: GroupManifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._read: tuple[int, dict[str, NDArray[Any]]] | None = None

    def chunk(self, chunk: Chunk) -> "NDArray[Any]":
        """Return the numbers of a chunk.

        Raises:
            CheckpointDamagedError: if its file isn't what was saved, or lacks them.
        """
        array = self.arrays(chunk.worker).get(chunk.name)
        if array is None:
            path = self._folder / self._manifest.workers[chunk.worker].file
            reason = f"array {shown(chunk.name)} is missing"
            raise CheckpointDamagedError(path=str(path), reason=reason)
        return array

    def value(self, worker: int, document: Any) -> Any:
        """Return the plain value of a document whose numbers a worker's file has.

        Raises:
            CheckpointDamagedError: if that file isn't what was saved.
            ValueError: if the document is described wrongly.
        """
        return from_document(document, _Lazily(self, worker))

    def arrays(self, worker: int) -> "Mapping[str, NDArray[Any]]":
        """Return the arrays of a worker's file.

        Raises:
            CheckpointDamagedError: if it isn't what was saved.
        """
        if self._read is None or self._read[0] != worker:
            self._read = None  # its memory, before that of the next
            arrays = read_arrays(self._folder, self._manifest.workers[worker])
            self._read = worker, arrays
        return self._read[1]


class _Lazily(Mapping[str, Any]):
    """The arrays of a worker's file, which is read if one is asked for."""

    def __init__(self, files: WorkerFiles, worker: int) -> None:
        self._files = files
        self._worker = worker

    def __getitem__(self, name: str) -> Any:
        return self._files.arrays(self._worker)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files.arrays(self._worker))

    def __len__(self) -> int:
        return len(self._files.arrays(self._worker))
