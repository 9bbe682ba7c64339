"""``fleet.remove_rows``: rows of a table that nobody needs any more, and their memory."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.nn.embedding import IdError, SparseModule
from paramfleet.session.session import Session

__all__ = ["Removing"]


class Removing:
    """Removes rows for one session.

    Args:
        session: Whose tables they are of.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def remove_rows(
        self,
        table: SparseModule | str,
        ids: torch.Tensor | NDArray[np.int64] | Sequence[int],
    ) -> int:
        """Remove rows of a table with their optimizer states; new ones take their memory.

            fleet.remove_rows(model.ads, ids_of_ended_ads)

        A row that is looked up later begins anew, with its first value and first states. To be
        called between two steps, when the last one's ``minimize``, or ``step`` and
        ``zero_grad``, is over.

        * sync: every worker calls it between the same two steps, with ids of its own, perhaps
          none. The rows of all of them are removed before any worker goes on.
        * async: a worker calls it at any time. The gradients that it has queued are applied
          first. Gradients that another worker sends later, of values that it pulled before,
          begin the row anew.
        * GEO: a worker calls it at any time. It drops its copies with their progress; another
          worker drops its own with its next exchange, and what it sends with that begins the
          row anew.

        Args:
            table: A module of ``fleet.nn``, or its table's name.
            ids: int64 or int32 [n], of a tensor, an array or a list; those without a row have
                no effect, and one may occur many times.

        Returns:
            How many rows there were and are removed; in sync of all workers' ids together, the
            same in every worker.

        Raises:
            IdError: if ``ids`` have another dtype or shape.
            TableUnknownError: if the optimizer trains no such table.
            CallOrderError: before ``distributed_optimizer``.
            NotStartedError: before ``init_worker``.
            TrainingFinishedError: after ``finish_training``.
            WrongModeError: in collective mode and LocalSGD, which have no tables of rows.
            RemovalNotSharedError: in sync, if another worker took its step instead; nothing is
                removed.
            TotalIncompleteError: in sync, if another worker doesn't call it in time; call it
                again before the next step.
            FleetError: if the job failed or a pserver didn't answer in time; some rows may be
                removed, and the call may be repeated.
        """
        name = table if isinstance(table, str) else table.table.name
        backend = self._session.backend
        return backend.remove_rows(self._session.optimizer, name, _checked(name, ids))


def _checked(
    table: str, ids: torch.Tensor | NDArray[np.int64] | Sequence[int]
) -> NDArray[np.int64]:
    """Return ids as int64 [n], each once.

    Raises:
        IdError: if they have another dtype or shape.
    """
    found = np.asarray(ids.detach().cpu() if isinstance(ids, torch.Tensor) else ids)
    if not isinstance(ids, torch.Tensor | np.ndarray) and not found.size:
        found = found.astype(np.int64)  # of an empty list numpy makes floats
    if found.dtype not in {np.dtype(np.int64), np.dtype(np.int32)}:
        raise IdError(
            table=table, found=f"dtype {found.dtype}", rule="ids must be int64 or int32"
        )
    if found.ndim != 1:
        rule = "ids must be of one dimension: flatten them"
        raise IdError(table=table, found=f"shape {list(found.shape)}", rule=rule)
    return np.unique(found.astype(np.int64, copy=False))
