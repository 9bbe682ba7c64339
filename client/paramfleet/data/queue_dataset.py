"""``QueueDataset``: files as a stream of batches."""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from paramfleet.data.batch import Batch
from paramfleet.data.dataset import DatasetBase, share_of_process
from paramfleet.data.parsing.parser import Block
from paramfleet.data.parsing.rows import Rows
from paramfleet.data.progress import FINISHED, Progress, among_workers
from paramfleet.data.reading.files import require_files
from paramfleet.data.reading.threads import Readers
from paramfleet.data.settings import DatasetSettings

__all__ = ["QueueDataset"]


class QueueDataset(DatasetBase):
    """Reads its files once an epoch, with ``thread_num`` readers, and keeps none of them.

    A file's samples come in its order. With several readers, those of several files come
    mixed, as they are read; a batch may hold samples of more than one.

    ``state_dict`` is exact at every moment between two batches: another process that
    loads it continues with the sample after the last one yielded. If a ``DataLoader``
    reads ahead in its own processes, call ``advance`` with each batch that was used.

        dataset = fleet.data.QueueDataset()
        dataset.init(batch_size=512, thread_num=2, use_var=[label, *slots])
        dataset.set_filelist(fleet.data.split_files(files, rank, num_workers))
        for batch in dataset:
            ...
    """

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress()
        self._resumes = False

    @override
    def __iter__(self) -> Generator[Batch, None, None]:
        """Yield an epoch's batches, or the rest of the one that a loaded state is in.

        Raises:
            EmptyFileListError: if there are no files.
            FleetError: what is wrong with a file, a line or a pipe command. The batches
                of whole lines before it have been yielded, and ``state_dict`` is there.
        """
        settings = self.settings
        require_files(self._files, settings)
        if not self._resumes:
            self._progress.lines = {}
        self._resumes = False
        skip = dict(self._progress.lines)
        mine = share_of_process(range(len(self._files)))
        readers = Readers(
            self._files,
            [number for number in mine if skip.get(number) != FINISHED],
            skip=skip,
            settings=settings,
            bad_lines=self._new_bad_lines(),
        )
        try:
            for batch in _batches(iter(readers), settings):
                self._progress.advance(batch.position)
                yield batch
            self.end_epoch()
        finally:
            readers.close()

    def advance(self, batch: Batch) -> None:
        """Count a batch as used that another process's copy of this dataset has yielded.

        ``state_dict`` is then the position after all batches that were counted. Call
        ``end_epoch`` at the end of an epoch.
        """
        self._progress.advance(batch.position)

    def end_epoch(self) -> None:
        """Count an epoch as ended that other processes' copies have yielded."""
        self._resumes = False
        self._progress.end_epoch()

    @property
    def epoch(self) -> int:
        """Epochs that have ended."""
        return self._progress.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position in plain values: files, lines used of each, epoch."""
        return self._progress.to_state(self._files)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``for`` continue at the position of a state; set the file list before.

        Raises:
            OtherDataError: if the state is one of other files.
        """
        self._progress = Progress.from_state(state, self._files)
        self._resumes = True

    def reshard(
        self, states: Sequence[Mapping[str, Any]], rank: int, size: int
    ) -> dict[str, Any]:
        """Return the position of this dataset after a run with another number of workers.

        Each file continues where its reader was; set the file list before.

        Args:
            states: The ``state_dict`` of every worker's dataset, by rank.
            rank: This worker's; the file list decides, and not this.
            size: Number of workers now; the same.

        Raises:
            OtherDataError: if one isn't of such a dataset.
        """
        del rank, size
        return among_workers(states, self._files)


def _batches(blocks: Iterator[Block], settings: DatasetSettings) -> Iterator[Batch]:
    """Yield batches of blocks as they come; only the last one may be smaller."""
    waiting: deque[tuple[Block, int]] = deque()
    num_waiting = 0
    for block in blocks:
        waiting.append((block, 0))
        num_waiting += len(block.rows)
        while num_waiting >= settings.batch_size:
            yield _next_batch(waiting, settings.batch_size, settings)
            num_waiting -= settings.batch_size
    if num_waiting:
        yield _next_batch(waiting, num_waiting, settings)


def _next_batch(
    waiting: deque[tuple[Block, int]], size: int, settings: DatasetSettings
) -> Batch:
    """Take the next samples off the blocks, and blocks that are used up."""
    pieces: list[tuple[Rows, np.typing.NDArray[np.int64]]] = []
    lines: dict[int, int] = {}
    left = size
    while left or (waiting and waiting[0][1] == len(waiting[0][0].rows)):
        block, used = waiting.popleft()
        taken = min(left, len(block.rows) - used)
        if taken:
            pieces.append((block.rows, np.arange(used, used + taken)))
            lines[block.file] = int(block.lines[used + taken - 1])
        if used + taken < len(block.rows):
            waiting.appendleft((block, used + taken))
        else:
            lines[block.file] = FINISHED if block.is_last else block.end_line
        left -= taken
    if len(pieces) == 1:
        rows, order = pieces[0]
    else:
        rows = Rows.join([rows.take(order) for rows, order in pieces])
        order = np.arange(size)
    return Batch.of(settings.layout, rows, order, {"lines": lines})
