"""What a load leaves as it was, because checkpoint and model differ: named in the log.

A table is known by its name: that of its module, or of the optimizer's parameter group. A
renamed module has another table, and a checkpoint of another model fills nothing.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paramfleet.tables.rules import is_served
from paramfleet_shared.checkpoint.manifest import Manifest

if TYPE_CHECKING:
    from paramfleet.training.optimizer import DistributedOptimizer

__all__ = ["note_differences"]

log = logging.getLogger(__name__)

_LACKING = (
    "they keep the values that they have; a table has its module's name, so give a renamed "
    "module its former one with name="
)
_UNUSED = (
    "the pservers keep them unused and save them again; load a checkpoint of this model, or "
    "give a renamed module its former name with name="
)
_ANEW = "the optimizer begins with new states: no checkpoint has those that it would go on with"


def note_differences(
    optimizer: "DistributedOptimizer", manifest: Manifest, folder: str | Path
) -> list[str]:
    """Warn of tables that checkpoint and model don't share, and of states that begin anew.

    Args:
        optimizer: Whose tables were loaded.
        manifest: Of the checkpoint.
        folder: The checkpoint's, for the log.

    Returns:
        The model's tables that the checkpoint lacks: they stay as they are.
    """
    own = [table.name for table, _ in optimizer.tables.sparse]
    own += [block.name for block, _ in optimizer.tables.dense]
    saved = {table.spec.name for table in manifest.tables}
    missing, unknown = sorted(set(own) - saved), sorted(saved - set(own))
    if missing:
        facts = {"folder": str(folder), "missing": missing, "remedy": _LACKING}
        log.warning("worker.tables_not_in_checkpoint", extra=facts)
    if unknown:
        facts = {"folder": str(folder), "unknown": unknown, "remedy": _UNUSED}
        log.warning("worker.tables_not_in_model", extra=facts)
    anew = _without_states(optimizer, manifest)
    if anew:
        name = type(optimizer.inner).__name__
        facts = {"folder": str(folder), "optimizer": name, "tables": anew, "reason": _ANEW}
        log.warning("worker.states_begin_anew", extra=facts)
    return missing


def _without_states(optimizer: "DistributedOptimizer", manifest: Manifest) -> list[str]:
    """Return the loaded tables whose states in this process aren't in the checkpoint.

    A table whose states were saved by another rule is named where that is found, as
    ``states_left_out``.
    """
    mode, inner = optimizer.running, optimizer.inner
    saved = {table.spec.name: table.spec.optimizer for table in manifest.tables}
    groups = [(table.name, group, True) for table, group in optimizer.tables.sparse]
    groups += [(block.name, group, False) for block, group in optimizer.tables.dense]
    return sorted(
        name
        for name, group, sparse in groups
        if name in saved
        and mode.begins_anew(
            kept=_keeps_states(inner, group),
            saved=bool(saved[name].num_state_columns),
            served=is_served(inner, group, sparse=sparse),
        )
    )


def _keeps_states(inner: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Return whether an optimizer keeps states of a group's values; unknown ones may."""
    return not isinstance(inner, torch.optim.SGD) or bool(group["momentum"])
