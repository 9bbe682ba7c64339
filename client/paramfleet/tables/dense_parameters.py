"""Whether a checkpoint's dense tables hold the parameters that the model's have.

A dense table is the vector of a parameter group, or of a fragment of LocalSGD, and is named by
its number. So the names of two tables say nothing of what is in them: the checkpoint says which
parameters it has, by their names in the model, and so does the model.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from paramfleet.tables.dense import DenseBlock
from paramfleet_shared.checkpoint.saved_parameters import DenseParameters, SavedParameter
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import GROUPS, NamedShape

__all__ = [
    "DenseOrderError",
    "DenseParameterError",
    "Place",
    "check_same_parameters",
    "check_same_places",
    "have_same_places",
    "named_in",
    "parameters_of",
    "places_in",
]


_COMPILED = "_orig_mod."
"""What ``torch.compile`` puts before the names of a module's parameters."""


class DenseOrderError(ContractError):
    """A checkpoint has a parameter at another place of its dense tables."""

    code = "contract.dense_order"
    table: str
    parameter: str
    number: int
    saved_table: str
    saved_number: int
    sentence = (
        "parameter {parameter!r} is number {number} of table {table!r}, and in the checkpoint "
        f"number {{saved_number}} of {{saved_table!r}} ({GROUPS}): give the optimizer its "
        "parameters in the order and groups of the checkpoint, or load it in one process with "
        "this optimizer and save it again"
    )


class DenseParameterError(ContractError):
    """A checkpoint's dense tables have other parameters than the model's."""

    code = "contract.dense_parameter"
    table: str
    parameter: str
    difference: str
    sentence = (
        "parameter {parameter!r} of table {table!r} {difference}: load a checkpoint of this "
        "model, give a renamed module its former name, or begin without the checkpoint"
    )


class Place(NamedTuple):
    """Where a parameter is."""

    table: str
    number: int
    """From 0, in the table's order."""
    start: int
    """The place of its first value in the table's vector."""
    shape: tuple[int, ...]

    @property
    def name(self) -> tuple[str, int]:
        """Return what tells it from other places."""
        return self.table, self.number


def parameters_of(
    model: torch.nn.Module | None, blocks: Sequence[DenseBlock]
) -> dict[str, tuple[SavedParameter, ...]]:
    """Return the parameters of dense tables as a manifest names them.

    Args:
        model: That ``fleet.distributed_model`` got; None has no names.
        blocks: The tables. One with a parameter that isn't the model's is left out.
    """
    named = [] if model is None else model.named_parameters()
    names = {id(parameter): name.replace(_COMPILED, "") for name, parameter in named}
    return {
        block.name: tuple(
            SavedParameter(names[id(each)], tuple(each.shape)) for each in block.parameters
        )
        for block in blocks
        if all(id(each) in names for each in block.parameters)
    }


def named_in(model: torch.nn.Module | None, block: DenseBlock) -> tuple[NamedShape, ...]:
    """Return the names and shapes of a table's parameters, as its description has them.

    Args:
        model: As of ``parameters_of``.
        block: The table; of one with a parameter that isn't the model's none are returned.
    """
    found = parameters_of(model, [block]).get(block.name, ())
    return tuple((each.name, each.shape) for each in found)


def places_in(tables: DenseParameters) -> dict[str, Place]:
    """Return where each parameter of dense tables is, in their order."""
    return dict(_places(tables))


def have_same_places(saved: DenseParameters, here: DenseParameters) -> bool:
    """Return whether the vectors of a checkpoint are those of the model's tables.

    Tables of one name have the same parameters, and no other tables have one in common. What
    only one of them names counts as the same.
    """
    common = saved.keys() & here.keys()
    if any(saved[table] != here[table] for table in common):
        return False
    others = [{t: each[t] for t in each.keys() - common} for each in (saved, here)]
    return not places_in(others[0]).keys() & places_in(others[1]).keys()


def check_same_parameters(saved: DenseParameters, here: DenseParameters) -> None:
    """Pass if the tables of a checkpoint have the same parameters together as the model's.

    Raises:
        DenseParameterError: naming the first that differs.
    """
    had, has = places_in(saved), places_in(here)
    for name, place in has.items():
        difference = "" if name in had else "is not in the checkpoint"
        if name in had and had[name].shape != place.shape:
            difference = f"has shape {place.shape}, and in the checkpoint {had[name].shape}"
        if difference:
            raise DenseParameterError(table=place.table, parameter=name, difference=difference)
    for name, place in had.items():
        if name not in has:
            difference = "is in the checkpoint, and the optimizer doesn't have it"
            raise DenseParameterError(table=place.table, parameter=name, difference=difference)


def check_same_places(saved: DenseParameters, here: DenseParameters) -> None:
    """Pass if the vectors of a checkpoint are those of the model's tables.

    Raises:
        DenseParameterError: naming the first parameter that only one has, or in another shape.
        DenseOrderError: if they have the same ones, naming the first at another place.
    """
    if have_same_places(saved, here):
        return
    check_same_parameters(saved, here)
    had = places_in(saved)
    for name, place in places_in(here).items():
        if place.name != had[name].name:
            raise DenseOrderError(
                table=place.table,
                parameter=name,
                number=place.number,
                saved_table=had[name].table,
                saved_number=had[name].number,
            )


def _places(tables: DenseParameters) -> Iterator[tuple[str, Place]]:
    for table, parameters in tables.items():
        start = 0
        for number, each in enumerate(parameters):
            yield each.name, Place(table, number, start, each.shape)
            start += each.size
