"""``fleet.remove_rows``: rows of a table that nobody needs any more, and their memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.nn.embedding import IdError, SparseModule
from paramfleet.session.session import Session
from paramfleet.tables.embedding_errors import id_type_error
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.sorting import each_once

__all__ = ["NotATableError", "Removing", "checked_ids", "table_name"]


class NotATableError(ContractError):
    """A function got something that isn't a table of rows of this training."""

    code = "contract.not_a_table"
    function: str
    got: str
    known: str
    sentence = (
        "fleet.{function} takes a fleet.nn module of the model that is trained, or the name "
        "of its table, and not {got}; the optimizer trains: {known}"
    )


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
        """Remove rows of a table with their optimizer states; new rows reuse their memory.

            fleet.remove_rows(model.ads, ids_of_ended_ads)

        A row that is looked up later is created again, with its first values and first states.
        Call this function between two steps, after ``minimize``, or after ``step`` and
        ``zero_grad``.

        * sync: every worker calls it between the same two steps, for the same tables in the
          same order, with its own ids or none. All these rows are removed before any worker
          continues.
        * async: a worker calls it at any time. First the gradients that it has queued are
          applied. If another worker later sends gradients of values that it pulled before, they
          create the row again.
        * GEO: a worker calls it at any time. It deletes its copies and their progress; another
          worker deletes its copies at its next exchange. Changes that it sends with this
          exchange create the row again.

        Args:
            table: A module of ``fleet.nn``, or its table's name.
            ids: int64 or int32 of any shape, as a tensor, an array or a list; ids without a row
                have no effect, and ids may occur several times.

        Returns:
            The number of removed rows; in sync for the ids of all workers, the same in every
            worker.

        Raises:
            NotATableError: if ``table`` is neither, or a module of another model.
            IdError: if ``ids`` have another dtype, or are lists of several lengths.
            TableUnknownError: if the optimizer trains no such table.
            CallOrderError: before ``distributed_optimizer``, or if gradients wait for their
                step.
            NotStartedError: in a job, before ``init_worker``.
            TrainingFinishedError: after ``finish_training``.
            WrongModeError: in collective mode and LocalSGD, which have no tables of rows.
            RemovalNotSharedError: in sync, if another worker took its step instead, or removes
                rows of another table; nothing is removed.
            TotalIncompleteError: in sync, if another worker doesn't call it in time; call it
                again before the next step.
            FleetError: if the job failed or a pserver didn't answer in time; some rows may be
                removed, and the call may be repeated.
        """
        backend, optimizer = self._session.backend, self._session.optimizer
        name = table_name("remove_rows", table, optimizer)
        return backend.remove_rows(optimizer, name, checked_ids(name, ids))


def table_name(function: str, given: Any, optimizer: DistributedOptimizer | None) -> str:
    """Return the name of a table that is given as such, or by a module that uses it.

    Args:
        function: Of ``fleet``, which was given it.
        given: What was given.
        optimizer: What trains tables.

    Raises:
        NotATableError: if it is neither, or the module's table isn't the optimizer's of its
            name.
    """
    if isinstance(given, str):
        return given
    trained = {} if optimizer is None else {t.name: t for t, _ in optimizer.tables.sparse}
    known = ", ".join(trained) or "none"
    table = getattr(given, "table", None)
    if not isinstance(given, torch.nn.Module) or not isinstance(table, SparseTable):
        raise NotATableError(function=function, got=type(given).__name__, known=known)
    if trained.get(table.name, table) is not table:
        got = (
            "a module of another model whose table has the same name: "
            f"{table.name!r}, row width {table.dim}"
        )
        raise NotATableError(function=function, got=got, known=known)
    return table.name


def checked_ids(
    table: str, ids: torch.Tensor | NDArray[np.int64] | Sequence[int]
) -> NDArray[np.int64]:
    """Return ids as int64 [n], each once.

    Args:
        table: Its name.
        ids: What was given, of any shape.

    Raises:
        IdError: if they have another dtype, or are lists of several lengths.
    """
    try:
        found = np.asarray(ids.detach().cpu() if isinstance(ids, torch.Tensor) else ids)
    except ValueError:
        rule = "give a list of ids, or lists of one length"
        raise IdError(table=table, found="lists of several lengths", rule=rule) from None
    if not isinstance(ids, torch.Tensor | np.ndarray) and not found.size:
        found = found.astype(np.int64)  # of an empty list numpy makes floats
    if found.dtype not in {np.dtype(np.int64), np.dtype(np.int32)}:
        error = id_type_error(table, str(found.dtype))
        raise error
    return each_once(found.reshape(-1).astype(np.int64, copy=False))
