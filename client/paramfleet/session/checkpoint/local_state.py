"""Training in one process, as a checkpoint sees it: the same tables that pservers save.

A table trained alone can be loaded by pservers and the other way round, with its
optimizer state, when torch's optimizer is one that pservers run. For another
optimizer only the values are saved.

Shape legend: n = rows, D = row width, S = state columns, P = values of a dense table.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.nn.table_binding import without_negative_ids
from paramfleet.session.checkpoint.dense_places import (
    DenseToInstall,
    as_saved,
    places_now,
    rearranged,
)
from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.dense_state import missed_of, steps_of
from paramfleet.tables.row_store import spec_of
from paramfleet.tables.rules import OptimizerNotServedError, rule_of_rows, server_rule
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.modes.base import ModelTables
from paramfleet.training.modes.rowstep import RowStepper, forget_states
from paramfleet_shared.checkpoint.layers import LayerFile, read_layers
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointDamagedError,
    FilePart,
    Manifest,
    ManifestError,
    SavedTable,
    StatesLeftOut,
)
from paramfleet_shared.checkpoint.saved_ids import check_each_once, check_not_negative
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rows.states import have_other_states, states_for
from paramfleet_shared.tables.spec import GROUPS, OptimizerSpec, TableSpec

__all__ = ["TablesToLoad", "export_tables", "join_parts", "tables_to_load"]


class TablesToLoad(NamedTuple):
    """What a checkpoint has of all tables, read and compared but not taken yet."""

    steps: int
    """That had been taken."""
    trained_by: dict[str, OptimizerSpec]
    """The rule whose states were saved of each of the model's tables."""
    left_out: list[StatesLeftOut]
    """Tables whose states are another optimizer's."""
    puts: list[Callable[[], None]]
    """Of each table."""

    def install(self) -> None:
        """Put every table in place."""
        for put in self.puts:
            put()


def export_tables(
    optimizer: torch.optim.Optimizer,
    tables: ModelTables,
    steppers: Sequence[RowStepper],
    *,
    steps: int,
) -> list[tuple[SavedTable, FilePart]]:
    """Return every table with its rows and optimizer state.

    Args:
        optimizer: The user's.
        tables: Its parameters.
        steppers: What steps the sparse tables, in their order.
        steps: That were taken, for an optimizer that doesn't count them itself.
    """
    sparse, dense = _specs_of(optimizer, tables)
    saved = []
    for stepper, spec in zip(steppers, sparse, strict=True):
        store = stepper.store
        ids, columns = store.live_ids().copy(), spec.optimizer.columns
        slots = store.held(ids)
        states = [store.column(column.name)[slots] for column in columns]
        empty = np.empty((len(ids), 0), np.float32)
        part = FilePart(
            ids=ids,
            values=store.values[slots],
            states=np.concatenate([empty, *states], axis=1),
        )
        saved.append((SavedTable(spec=spec, version=stepper.num_steps), part))
    for (block, _), spec in zip(tables.dense, dense, strict=True):
        states_SP = [
            _flat_state(optimizer, block, column.name, spec)
            for column in spec.optimizer.columns
        ]
        stacked = np.stack(states_SP) if states_SP else np.empty((0, block.size), np.float32)
        version = steps_of(optimizer, block, otherwise=steps)
        part = FilePart(values=block.values(), states=stacked)
        missed = missed_of(optimizer, block, steps=version)
        saved.append((SavedTable(spec=spec, version=version, missed=missed), part))
    return saved


def tables_to_load(
    optimizer: torch.optim.Optimizer,
    tables: ModelTables,
    steppers: Sequence[RowStepper],
    folder: Path,
    manifest: Manifest,
    *,
    model: torch.nn.Module | None,
) -> TablesToLoad:
    """Read every table of a checkpoint, and compare it with the model's.

    Args:
        optimizer: The user's.
        tables: Its parameters.
        steppers: What steps the sparse tables, in their order.
        folder: The checkpoint's.
        manifest: What it consists of.
        model: What names the dense parameters, and says which tables take negative ids.

    Raises:
        ManifestError: if it has a table that isn't the model's.
        CheckpointDamagedError: if a file isn't what was saved, or has an id that another one
            has, or that the table doesn't take.
        SavedTableMismatchError: if a table has another shape, or other first values.
        DenseParameterError: if its dense parameters aren't the model's.
        DenseOrderError: if some of them are in other tables, and others have no names.
    """
    blocks = [block for block, _ in tables.dense]
    sparse, dense = _specs_of(optimizer, tables)
    specs = {spec.name: spec for spec in (*sparse, *dense)}
    here = places_now(manifest, model, blocks)
    saved = {table.spec.name: table for table in manifest.tables}
    moved = set() if here is None else saved.keys() - {spec.name for spec in sparse}
    same = {n: each for n, each in saved.items() if n not in moved or not each.is_dense}
    _check_same_tables(same, specs, folder)
    wholes = _read_wholes(folder, manifest, not_negative=without_negative_ids(model))
    loaded = TablesToLoad(
        max((table.version for table in saved.values()), default=0),
        trained_by={},
        left_out=[],
        puts=[],
    )
    for stepper in steppers:
        name = stepper.table.name
        if name in saved:
            _add_rows(loaded, stepper, saved[name], wholes[name], specs[name].optimizer)
    for block in blocks:
        rule = specs[block.name].optimizer
        if here is not None:
            found = rearranged(block.name, rule, here, manifest, wholes)
        elif block.name in saved:
            found = as_saved(saved[block.name], wholes[block.name], block, rule)
        else:
            continue
        loaded.trained_by[block.name] = found.trained_by
        loaded.left_out.extend(found.left_out)
        loaded.puts.append(partial(_install_dense, optimizer, block, found, rule))
    return loaded


def _add_rows(
    loaded: TablesToLoad,
    stepper: RowStepper,
    saved: SavedTable,
    whole: FilePart,
    rule: OptimizerSpec,
) -> None:
    name, had = saved.spec.name, saved.spec.optimizer
    anew = have_other_states(had, rule)
    if anew:
        loaded.left_out.append(StatesLeftOut(name, had.rule, rule.rule))
    part = replace(whole, states=states_for(rule, had, whole.values, whole.states))
    loaded.trained_by[name] = had
    steps = 0 if anew else saved.version
    loaded.puts.append(partial(_install_rows, stepper, part, steps=steps, rule=rule))


def _install_rows(
    target: RowStepper, part: FilePart, *, steps: int, rule: OptimizerSpec
) -> None:
    """Put the rows of one table in place.

    Args:
        target: The table's rows. Those that the part doesn't hold go, as in pservers.
        part: The whole table.
        steps: Steps that the optimizer had taken.
        rule: The rule whose states the part holds.
    """
    assert part.ids is not None, "rows have ids"
    target.forget_states()
    store = target.store
    store.clear()
    slots = target.store.slots(part.ids)
    target.store.values[slots] = part.values
    spans = RowLayout.of_states(rule, store.spec.dim).spans
    columns = {name: part.states[:, span] for name, span in spans.items()}
    target.restore(slots, columns, steps=steps)


def _install_dense(
    optimizer: torch.optim.Optimizer,
    target: DenseBlock,
    found: DenseToInstall,
    rule: OptimizerSpec,
) -> None:
    """Put one dense table in place.

    Args:
        optimizer: The user's; its states are set.
        target: The parameters.
        found: What they are to be.
        rule: The rule whose states it holds.
    """
    target.install(found.part.values)
    forget_states(optimizer, (), [target])
    position = 0
    for parameter, steps in zip(target.parameters, found.steps, strict=True):
        where = slice(position, position + parameter.numel())
        position = where.stop
        if not steps:
            continue
        state = optimizer.state[parameter]
        if rule.record.counts_steps:
            state["step"] = torch.tensor(float(steps))
        for index, column in enumerate(rule.columns):
            piece = torch.from_numpy(found.part.states[index, where].copy())
            state[column.name] = piece.view(parameter.shape).to(parameter)


def _read_wholes(
    folder: Path, manifest: Manifest, *, not_negative: Collection[str]
) -> dict[str, FilePart]:
    """Return every table of a checkpoint, by its name.

    Raises:
        CheckpointDamagedError: if a file isn't what was saved, or has an id that another one
            has, or a negative one of the tables ``not_negative``.
    """
    wholes, layers = {}, read_layers(folder, manifest)
    for table in manifest.tables:
        name = table.spec.name
        files, parts = list[LayerFile](), list[FilePart]()
        for file in layers.files(name):
            files.append(file.alone())
            parts.append(file.read())
        _check_ids(name, files, parts, allows_negative=name not in not_negative)
        wholes[name] = join_parts(parts, table.spec)
    return wholes


def join_parts(parts: Sequence[FilePart], spec: TableSpec) -> FilePart:
    """Return the parts of one table as one.

    Raises:
        CheckpointDamagedError: if values of a dense table are missing.
    """
    if spec.kind == "sparse":
        width = RowLayout.of(spec).states.pitch
        each = [part.ids for part in parts if part.ids is not None]
        return FilePart(
            ids=np.concatenate([np.empty(0, np.int64), *each]),
            values=np.concatenate(
                [np.empty((0, spec.dim), np.float32), *(p.values for p in parts)]
            ),
            states=np.concatenate(
                [np.empty((0, width), np.float32), *(p.states for p in parts)]
            ),
        )
    ordered = sorted(parts, key=lambda part: part.start)
    ends = [0, *(part.start + part.num_rows for part in ordered)]
    if [*(part.start for part in ordered), spec.size] != ends:
        raise CheckpointDamagedError(path=spec.name, reason="the parts leave values out")
    none = np.empty((spec.optimizer.num_state_columns, 0), np.float32)
    return FilePart(
        values=np.concatenate([part.values for part in ordered]),
        states=np.concatenate([none, *(part.states for part in ordered)], axis=1),
    )


def _check_same_tables(
    saved: Mapping[str, SavedTable], specs: Mapping[str, TableSpec], folder: Path
) -> None:
    """Pass if the model has all tables of a checkpoint, with rows of the same kind.

    Raises:
        ManifestError: naming the first that it doesn't have.
        SavedTableMismatchError: if a table has another shape, or other first values.
    """
    for name, table in saved.items():
        if name not in specs:
            remedy = "give a renamed module its former name with name="
            if table.is_dense:
                remedy = f"give the optimizer the groups of the checkpoint: {GROUPS}"
            rule = (
                f"has a table {name!r} that this model doesn't have; load a checkpoint of this "
                f"model, or {remedy}"
            )
            raise ManifestError(path=str(folder / MANIFEST), rule=rule)
        specs[name].check_same_rows(table.spec)


def _check_ids(
    table: str,
    files: Sequence[LayerFile],
    parts: Sequence[FilePart],
    *,
    allows_negative: bool,
) -> None:
    """Pass if the ids of a table's files are different ones that the table takes.

    Raises:
        CheckpointDamagedError: naming the first file that has another.
    """
    ids = [part.ids for part in parts if part.ids is not None]
    if not ids:  # a dense table's
        return
    check_each_once(table, [file.path for file in files], ids)
    for file, each in zip(files, ids, strict=True) if not allows_negative else ():
        check_not_negative(file.folder, file.file, each)


def _specs_of(
    optimizer: torch.optim.Optimizer, tables: ModelTables
) -> tuple[list[TableSpec], list[TableSpec]]:
    """Return how the sparse tables and the dense ones are kept, in their order."""
    sparse = [
        spec_of(table, rule=_rule(optimizer, group, table)) for table, group in tables.sparse
    ]
    return sparse, [block.spec(_rule(optimizer, group, None)) for block, group in tables.dense]


def _rule(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], table: SparseTable | None
) -> OptimizerSpec:
    try:
        if table is not None:
            return rule_of_rows(optimizer, group, table)
        return server_rule(optimizer, group, sparse=False)
    except OptimizerNotServedError:
        return OptimizerSpec(rule="sum")


def _flat_state(
    optimizer: torch.optim.Optimizer, block: DenseBlock, name: str, spec: TableSpec
) -> NDArray[np.float32]:
    """Return one state of a dense table, float32 [P]."""
    first = spec.optimizer.initial_state
    parts = []
    for parameter in block.parameters:
        state = optimizer.state[parameter].get(name)
        if state is None:
            state = torch.full_like(parameter, first)
        parts.append(state.detach().reshape(-1).to("cpu", torch.float32))
    flat: NDArray[np.float32] = torch.cat(parts).numpy()
    return flat
