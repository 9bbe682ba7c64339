"""What a load leaves as it was, because checkpoint and model differ: named in the log.

What no checkpoint will hold of an optimizer is named before, when training begins, and so are
rows that step otherwise than torch's.

A table is known by its name: that of its module, or of the optimizer's parameter group. A
renamed module has another table, and a checkpoint of another model fills nothing.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramfleet.tables.rules import is_served, keeps_states, moves_idle_rows, remedy_for
from paramfleet_shared.checkpoint.manifest import Manifest
from paramfleet_shared.tables.spec import GROUPS, OptimizerSpec

if TYPE_CHECKING:
    from paramfleet.training.optimizer import DistributedOptimizer

__all__ = ["note_differences", "note_idle_rows", "note_unsaved_states"]

log = logging.getLogger(__name__)

_LACKING = "they keep the values that they have"
_UNUSED = "the pservers keep them unused and save them again; load a checkpoint of this model"
_OF_ROWS = (
    "a table of rows has its module's name, so give a renamed module its former one with name="
)
_OF_GROUPS = f"{GROUPS}, so give the optimizer the groups of the checkpoint"
_ANEW = "the optimizer begins with new states: the checkpoint does not have its states"

_UNSAVED = (
    "checkpoints don't contain its states of these tables: after a load they start from the "
    "beginning"
)


def note_unsaved_states(optimizer: "DistributedOptimizer") -> None:
    """Warn of states that checkpoints won't hold, where this process steps by any optimizer.

    Pservers refuse such an optimizer. Of LocalSGD no inner states are saved.
    """
    mode, inner = optimizer.mode, optimizer.inner
    if mode.name not in {"local", "geo"} or mode.apart is not None:
        return
    remedies = {
        name: remedy_for(inner, group, sparse=sparse)
        for name, group, sparse in _groups(optimizer)
        if keeps_states(inner, group)
    }
    unsaved = {name: remedy for name, remedy in remedies.items() if remedy is not None}
    if unsaved:
        facts = {
            "optimizer": type(inner).__name__,
            "tables": sorted(unsaved),
            "reason": _UNSAVED,
            "remedy": "; ".join(dict.fromkeys(unsaved.values())),
        }
        log.warning("worker.states_not_saved", extra=facts)


def note_idle_rows(optimizer: "DistributedOptimizer") -> None:
    """Warn of tables whose rows torch's optimizer would move without a gradient."""
    tables = [
        table.name
        for table, group in optimizer.tables.sparse
        if table.accessor is None and moves_idle_rows(optimizer.inner, group)
    ]
    if tables:
        facts = {
            "optimizer": type(optimizer.inner).__name__,
            "tables": tables,
            "reason": (
                "a row without a gradient in a step keeps its value and states, as with "
                "torch.optim.SparseAdam, whose place of eps Adam has, too; torch's dense "
                "optimizers move it by momentum and weight decay"
            ),
            "remedy": "SGD and Adagrad without them have no such difference",
        }
        log.warning("worker.idle_rows_stay", extra=facts)


def note_differences(
    optimizer: "DistributedOptimizer",
    manifest: Manifest,
    folder: str | Path,
    *,
    trained_by: Mapping[str, OptimizerSpec] | None = None,
) -> list[str]:
    """Warn of tables that checkpoint and model don't share, and of states that begin anew.

    Args:
        optimizer: Whose tables were loaded.
        manifest: Of the checkpoint.
        folder: The checkpoint's, for the log.
        trained_by: The rule whose states were saved of each of the model's tables; None if
            these are the checkpoint's tables of their names.

    Returns:
        The model's tables that the checkpoint lacks: they stay as they are.
    """
    dense = {block.name for block, _ in optimizer.tables.dense}
    own = dense | {table.name for table, _ in optimizer.tables.sparse}
    if trained_by is None:
        trained_by = {table.spec.name: table.spec.optimizer for table in manifest.tables}
    missing, unknown = sorted(own - trained_by.keys()), sorted(trained_by.keys() - own)
    if missing:
        remedy = _remedy(_LACKING, missing, dense)
        facts = {"folder": str(folder), "missing": missing, "remedy": remedy}
        log.warning("worker.tables_not_in_checkpoint", extra=facts)
    if unknown:
        groups = {table.spec.name for table in manifest.tables if table.is_dense}
        remedy = _remedy(_UNUSED, unknown, groups)
        facts = {"folder": str(folder), "unknown": unknown, "remedy": remedy}
        log.warning("worker.tables_not_in_model", extra=facts)
    for differs in manifest.columns_that_differ():
        log.warning("worker.columns_differ", extra=differs._asdict())
    anew = _without_states(optimizer, trained_by)
    if anew:
        name = type(optimizer.inner).__name__
        facts = {"folder": str(folder), "optimizer": name, "tables": anew, "reason": _ANEW}
        log.warning("worker.states_begin_anew", extra=facts)
    return missing


def _remedy(what: str, tables: Iterable[str], dense: Collection[str]) -> str:
    """Return what happens to tables, and what to do, by what they are."""
    kinds = dict.fromkeys(_OF_GROUPS if table in dense else _OF_ROWS for table in tables)
    return "; ".join([what, *kinds])


def _without_states(
    optimizer: "DistributedOptimizer", saved: Mapping[str, OptimizerSpec]
) -> list[str]:
    """Return the loaded tables whose states in this process aren't in the checkpoint.

    A table whose states were saved by another rule is named where that is found, as
    ``states_left_out``.
    """
    mode, inner = optimizer.running, optimizer.inner
    return sorted(
        name
        for name, group, sparse in _groups(optimizer)
        if name in saved
        and mode.begins_anew(
            kept=keeps_states(inner, group),
            saved=bool(saved[name].num_state_columns),
            served=is_served(inner, group, sparse=sparse),
        )
    )


def _groups(optimizer: "DistributedOptimizer") -> list[tuple[str, dict[str, Any], bool]]:
    """Return each table's name, its parameter group, and whether it has rows."""
    groups = [(table.name, group, True) for table, group in optimizer.tables.sparse]
    return groups + [(block.name, group, False) for block, group in optimizer.tables.dense]
