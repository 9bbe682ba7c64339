"""``fleet.prefetch``: a loader's batches, their rows on the way before they are asked for.

Which rows a batch needs is what its ids say, and those come from ``ids``, or from watching
the first batch: which of its tensors, or views of them, reached which module of
``fleet.nn``. A tensor that is computed in between is no view of the batch's; its rows are
pulled when the forward asks, as without prefetching.

The loader stays in the training thread.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from paramfleet.api.loader_states import ReadAhead
from paramfleet.nn.embedding import IdError
from paramfleet.nn.watching import BatchLookups, IdsOfBatch, PrefetchError
from paramfleet.session.session import Session
from paramfleet.training.modes.ahead import Ahead, Loop, Wanted
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

    def _wanted(self, batch: B) -> list[Wanted]:
        wanted = []
        for module, ids in self._lookups.of(batch):
            try:
                unique, _, offsets = module.different(ids)[0]
            except IdError:  # the forward will say so, of its own batch
                continue
            wanted.append(Wanted(module.table, RowIds(unique, offsets), module.learns))
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
        """Iterate over a loader while the rows of coming batches are on their way.

        The batches come unchanged. The guarantees of the modes still hold: in sync, and in the
        first ``fresh_steps`` of async, the rows are those of the step, so that they travel
        between ``step()`` and the next forward; later in async they travel beside the training
        and may be ``depth`` steps older, which counts as staleness and keeps to
        ``max_staleness``. Alone and in GEO nothing travels. A forward that looks up other ids
        pulls them, as without. Loops may be inside each other or side by side.

        Args:
            loader: The batches; run through once for each iteration, in this thread.
            model: Whose modules of ``fleet.nn`` look the rows up.
            ids: Returns the ids of a batch: tensors by module, by its path in the model, or
                by its table's name. If not given, the first batch is watched: which of its
                tensors, or views of them, reach which module.
            depth: Batches that are loaded, and in async pulled for, before they are used.

        Raises:
            PrefetchError: if ``depth`` is less than 1, or ``ids`` names no module.
            CallOrderError: if iterated before ``distributed_optimizer``.
        """
        return Prefetcher(
            loader, model, ids=ids, depth=depth, ahead=self._ahead, stops=self._stops
        )

    def _ahead(self) -> Ahead | None:
        return self._session.backend.ahead(self._session.optimizer)
