"""``fleet.prefetch``: a loader's batches, their rows on the way before they are asked for.

Which rows a batch needs is what its ids say, and those come from ``ids``, or from watching
the first batch: which of its tensors, or views of them, reached which module of
``fleet.nn``. A tensor that is computed in between is no view of the batch's; its rows are
pulled when the forward asks, as without prefetching.

The loader stays in the training thread.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.api.loader_states import ReadAhead
from paramfleet.api.removing import checked_ids, table_name
from paramfleet.nn.embedding import IdError, SparseModule
from paramfleet.nn.watching import BatchLookups, IdsOfBatch, PrefetchError
from paramfleet.session.session import Session
from paramfleet.training.modes.prefetching.ahead import Ahead, Loop, Wanted
from paramfleet.training.modes.prefetching.disk_rows import PrefetchedRows
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["PrefetchError", "Prefetcher", "Prefetching"]

B = TypeVar("B")


class Prefetcher(ReadAhead[B]):
    """Yields a loader's batches unchanged; made by ``fleet.prefetch``, iterated each epoch.

    Args:
        loader: The batches.
        model: Whose modules of ``fleet.nn`` will look the rows up.
        ids: Returns the ids of a batch by module; None to watch the first batch.
        depth: Batches to be ahead by.
        ahead: Returns where rows are asked for; None where none travel.
        stops: Returns whether no further batch is wanted.

    Raises:
        PrefetchError: if ``depth`` is less than 1.
    """

    def __init__(
        self,
        loader: Iterable[B],
        model: torch.nn.Module,
        *,
        ids: IdsOfBatch | None,
        depth: int,
        ahead: Callable[[], Ahead | None],
        stops: Callable[[], bool] = lambda: False,
    ) -> None:
        if depth < 1:
            rule = "must be at least 1"
            raise PrefetchError(option="depth", value=repr(depth), rule=rule)
        super().__init__(loader)
        self._lookups = BatchLookups(model, ids)
        self._depth = depth
        self._ahead = ahead
        self._stops = stops

    def __iter__(self) -> Iterator[B]:
        """Yield the batches of one pass over the loader.

        Raises:
            PrefetchError: if ``ids`` names a module that the model doesn't have.
        """
        ahead = self._ahead()
        if ahead is None:
            for batch in self._loader:
                if self._stops():
                    return
                yield batch
            return
        batches = iter(self._loader)
        coming: deque[tuple[B, Any]] = deque()
        loop = ahead.open()
        try:
            yield from self._lookups.learn(batches)
            read = self._with_states(batches)
            while not self._stops() and self._fill(read, coming, loop, upto=1):
                loop.begin()
                batch, self._state = coming.popleft()
                self._fill(read, coming, loop, upto=self._depth)
                yield batch
            if not coming:
                self._state = None
        finally:
            ahead.close(loop)

    def _fill(
        self,
        read: Iterator[tuple[B, Any]],
        coming: deque[tuple[B, Any]],
        loop: Loop,
        *,
        upto: int,
    ) -> bool:
        """Load batches and ask for their rows; return whether there is a next one."""
        while len(coming) < upto:
            try:
                batch, state = next(read)
            except StopIteration:
                break
            loop.ask(self._wanted(batch))
            coming.append((batch, state))
        return bool(coming)

    def looked_up(self, batch: B) -> list[Wanted] | None:
        """Return what a batch of the same kind will look up; None if that isn't known as yet.

        Nothing where no rows travel.

        Raises:
            PrefetchError: if ``ids`` names a module that the model doesn't have.
        """
        if self._ahead() is None:
            return []
        return self._wanted(batch) if self._lookups.are_known else None

    def _wanted(self, batch: B) -> list[Wanted]:
        wanted = []
        for module, ids in self._lookups.of(batch):
            try:
                unique, _, offsets = module.different(ids)[0]
            except IdError:  # the forward will say so, of its own batch
                continue
            wanted.append(Wanted(module.table, RowIds(unique, offsets), module.creates))
        return wanted


class Prefetching:
    """What a session offers of this.

    Args:
        session: Whose optimizer says where rows come from.
        stops: Returns whether an operator ended the job: no batch follows then.
    """

    def __init__(self, session: Session, stops: Callable[[], bool] = lambda: False) -> None:
        self._session = session
        self._stops = stops

    def prefetch(
        self,
        loader: Iterable[B],
        model: torch.nn.Module,
        *,
        ids: IdsOfBatch | None = None,
        depth: int = 1,
    ) -> Prefetcher[B]:
        """Iterate over a loader, and pull the rows of the next batches in advance.

        The batches are not changed. The guarantees of the modes still hold: in sync, and in the
        first ``fresh_steps`` of async, the rows are those of the step. So they are pulled
        between ``step()`` and the next forward; pservers that have them on disk read them
        before. Later in async rows are pulled during the training and may be ``depth`` steps
        older; this counts as staleness and is limited by ``max_staleness``. In one process and
        in GEO no rows are pulled. If a forward looks up other ids, they are pulled as without
        this function. Loops may be nested.

        Args:
            loader: The batches; each iteration reads it once, in this thread.
            model: The model whose ``fleet.nn`` modules look the rows up.
            ids: Returns the ids of a batch: tensors by module, by its path in the model, or
                by its table's name. By default the first batch shows which of its tensors, or
                views of them, reach which module.
            depth: Number of batches that are loaded, and in async pulled, in advance.

        Raises:
            PrefetchError: if ``depth`` is less than 1, or ``ids`` names no module.
            CallOrderError: if iterated before ``distributed_optimizer``.
        """
        return Prefetcher(
            loader, model, ids=ids, depth=depth, ahead=self._ahead, stops=self._stops
        )

    def prefetch_rows(
        self,
        table: SparseModule | str,
        ids: torch.Tensor | NDArray[np.int64] | Sequence[int],
    ) -> PrefetchedRows:
        """Read rows on disk into the pservers' memory in advance; return immediately.

            coming = fleet.prefetch_rows(model.ads, ids_of_the_next_hour)

        For tables of pservers with a memory budget: later pulls of these rows do not wait for
        the disk. Values and the guarantees of the modes do not change. Pservers serve other
        requests in between. At most half of the rows that fit into memory are prefetched and
        not used yet. Prefetched rows are evicted last, until their first use or until twice the
        number of rows that fit was read. If all rows are in memory, each pserver is asked in
        one message whether it has rows on disk; nothing else is done. In one process and in GEO
        the function does nothing and sends nothing.

        Args:
            table: A module of ``fleet.nn``, or its table's name.
            ids: int64 or int32 of any shape, as a tensor, an array or a list; with several
                calls the most important ids first. Ids without a row have no effect, and ids
                may occur several times.

        Returns:
            Rows on their way: ``wait(timeout_s)`` returns how many were ``brought``, how many
            ids were ``left`` out, and whether the table has rows ``on_disk``.

        Raises:
            NotATableError: if ``table`` is neither, or a module of another model.
            IdError: if ``ids`` have another dtype, or are lists of several lengths.
            TableUnknownError: if the optimizer trains no such table.
            CallOrderError: before ``distributed_optimizer``.
            NotStartedError: in a job, before ``init_worker``.
            TrainingFinishedError: after ``finish_training``.
            WrongModeError: in collective mode and LocalSGD, which have no tables of rows.
        """
        backend, optimizer = self._session.backend, self._session.optimizer
        name = table_name("prefetch_rows", table, optimizer)
        return backend.prefetch_rows(optimizer, name, checked_ids(name, ids))

    def _ahead(self) -> Ahead | None:
        return self._session.backend.ahead(self._session.optimizer)
