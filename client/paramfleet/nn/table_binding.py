"""Which table each module of a model uses: names from paths, one table for each name."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from paramfleet.nn.embedding import SparseModule
from paramfleet.tables.embedding_errors import EmbeddingOptionError
from paramfleet.tables.sparse import table_of, tables_of
from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.texts import shown

if TYPE_CHECKING:
    from paramfleet.tables.sparse import SparseTable

__all__ = [
    "TableConflictError",
    "TableNotTrainedError",
    "check_covered",
    "share_tables",
    "untrained",
    "without_negative_ids",
]


class TableConflictError(ContractError):
    """Two modules name one table but give it different shapes."""

    code = "contract.table_conflict"
    table: str
    have: int
    got: int
    sentence = (
        "table {table!r} is declared twice, with row width {have} and {got}: "
        "give the modules different names or the same embedding_dim"
    )


class TableNotTrainedError(ContractError):
    """The model has a table that the optimizer, and so the job, doesn't know."""

    code = "contract.table_not_trained"
    table: str
    sentence = (
        "the optimizer lacks table {table!r}: give it every parameter of the model; "
        "parameters with requires_grad=False keep their values. A job has one optimizer, the "
        "last one that fleet.distributed_optimizer made"
    )


def check_covered(model: torch.nn.Module, known: Iterable["SparseTable"]) -> None:
    """Demand that every table of the model is one that the job knows by the optimizer.

    Raises:
        TableNotTrainedError: naming the first that isn't.
    """
    names = {table.name for table in known}
    for table in tables_of(model).values():
        if table.name not in names:
            raise TableNotTrainedError(table=table.name)


def untrained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of parameters that need gradients and aren't the optimizer's."""
    given = {id(each) for group in optimizer.param_groups for each in group["params"]}
    ordinary = {n: p for n, p in model.named_parameters() if table_of(p) is None}
    return [n for n, p in ordinary.items() if p.requires_grad and id(p) not in given]


def share_tables(model: torch.nn.Module) -> None:
    """Name tables by their modules' paths, and let modules of one name share one.

    Raises:
        TableConflictError: if two modules give one table different widths.
        EmbeddingOptionError: if they give it different accessors or entries.
    """
    tables: dict[str, SparseTable] = {}
    for path, module in model.named_modules():
        if not isinstance(module, SparseModule):
            continue
        if not module.named and not module.table.in_use:
            module.table.rename(module.table_at(path))
        first = tables.setdefault(module.table.name, module.table)
        if first.dim != module.table.dim:
            name = module.table.name
            raise TableConflictError(table=name, have=first.dim, got=module.table.dim)
        for option in ("accessor", "entry"):
            have, got = (getattr(t.kept_as, option) for t in (first, module.table))
            if have != got:
                rule = f"table {first.name!r} has another one by another module"
                raise EmbeddingOptionError(option=option, value=shown(got), rule=rule)
        module.share(first)


def without_negative_ids(model: torch.nn.Module | None) -> list[str]:
    """Return the tables of which no module of a model takes negative ids, sorted."""
    modules = (
        [] if model is None else [m for m in model.modules() if isinstance(m, SparseModule)]
    )
    taking = {each.table.name for each in modules if each.negative_ids}
    return sorted({each.table.name for each in modules} - taking)
