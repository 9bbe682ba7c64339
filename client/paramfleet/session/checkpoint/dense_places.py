"""A checkpoint's dense tables as the optimizer's groups have their parameters now.

Shape legend: n = values of a parameter, S = state columns.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.dense_parameters import (
    Place,
    check_same_parameters,
    check_same_places,
    have_same_places,
    parameters_of,
    places_in,
)
from paramfleet_shared.checkpoint.manifest import FilePart, Manifest, SavedTable, StatesLeftOut
from paramfleet_shared.checkpoint.saved_parameters import DenseParameters
from paramfleet_shared.tables.rows.states import have_other_states, states_for
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["DenseToInstall", "as_saved", "places_now", "rearranged", "steps_at"]


class DenseToInstall(NamedTuple):
    """One dense table, as the model has it."""

    part: FilePart
    steps: list[int]
    """That its optimizer had taken, of each parameter; 0 where its states begin anew."""
    trained_by: OptimizerSpec
    """The rule whose states were saved, if any were."""
    left_out: list[StatesLeftOut]


class _Piece(NamedTuple):
    """One parameter of it."""

    part: FilePart
    steps: int
    had: OptimizerSpec


def places_now(
    manifest: Manifest, model: torch.nn.Module | None, blocks: Sequence[DenseBlock]
) -> DenseParameters | None:
    """Return the parameters of the model's dense tables, if they aren't where they were saved.

    Returns:
        None if the vectors are the same, or it isn't known that they aren't.

    Raises:
        DenseParameterError: if the checkpoint has other parameters, or other shapes.
        DenseOrderError: if not all parameters have names, so that values can't go where these
            say.
    """
    saved, here = manifest.parameters, parameters_of(model, blocks)
    if have_same_places(saved, here):
        return None
    check_same_parameters(saved, here)
    tables = {table.spec.name for table in manifest.tables if table.is_dense}
    if saved.keys() != tables or here.keys() != {block.name for block in blocks}:
        check_same_places(saved, here)
    return here


def as_saved(
    table: SavedTable, part: FilePart, block: DenseBlock, rule: OptimizerSpec
) -> DenseToInstall:
    """Return a dense table whose parameters have the order that the checkpoint has."""
    had = table.spec.optimizer
    anew = have_other_states(had, rule)
    states = states_for(rule, had, part.values, part.states)
    return DenseToInstall(
        FilePart(values=part.values, states=states),
        [0 if anew else steps_at(table, start) for start in block.starts()],
        had,
        [StatesLeftOut(block.name, had.rule, rule.rule)] if anew else [],
    )


def steps_at(table: SavedTable, place: int) -> int:
    """Return the steps that a dense table's optimizer had taken of the value at a place."""
    counts = [count for start, stop, count in table.missed.counts() if start <= place < stop]
    return max(0, table.version - sum(counts))


def rearranged(
    table: str,
    rule: OptimizerSpec,
    here: DenseParameters,
    manifest: Manifest,
    wholes: Mapping[str, FilePart],
) -> DenseToInstall:
    """Return one of the model's dense tables, each parameter from where the checkpoint has it.

    Args:
        table: Its name.
        rule: What trains it now.
        here: As ``places_now`` returned it.
        manifest: The checkpoint's.
        wholes: Its tables, by name.
    """
    places = places_in(manifest.parameters)
    saved = {each.spec.name: each for each in manifest.tables}
    pieces = []
    for parameter in here[table]:
        place = places[parameter.name]
        source, part = saved[place.table], wholes[place.table]
        pieces.append(_piece_of(source, part, place, parameter.size, rule))
    rules = [piece.had for piece in pieces]
    others = [each.rule for each in rules if have_other_states(each, rule)]
    part = FilePart(
        values=np.concatenate([piece.part.values for piece in pieces]),
        states=np.concatenate([piece.part.states for piece in pieces], axis=1),
    )
    return DenseToInstall(
        part,
        [piece.steps for piece in pieces],
        max(rules, key=lambda each: each.num_state_columns),
        [StatesLeftOut(table, had, rule.rule) for had in dict.fromkeys(others)],
    )


def _piece_of(
    source: SavedTable, part: FilePart, place: Place, size: int, rule: OptimizerSpec
) -> _Piece:
    where = slice(place.start, place.start + size)
    had = source.spec.optimizer
    values = part.values[where]
    states = states_for(rule, had, values, part.states[:, where])
    steps = 0 if have_other_states(had, rule) else steps_at(source, place.start)
    return _Piece(FilePart(values=values, states=states), steps, had)
