"""Training in one process, as a checkpoint sees it: the same tables that pservers save.

A table trained alone can be loaded by pservers and the other way round, with its
optimizer state, when torch's optimizer is one that pservers run. For another
optimizer only the values are saved.

Shape legend: n = rows, D = row width, S = state columns, P = values of a dense table.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.dense import DenseBlock
from paramfleet.modes.base import ModelTables
from paramfleet.modes.rowstep import RowStepper
from paramfleet.rowstore import spec_of
from paramfleet.rules import OptimizerNotServedError, server_rule
from paramfleet_shared.checkpoint import FilePart
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

__all__ = ["export_tables", "install_table"]

_STATES: dict[str, tuple[str, ...]] = {
    "sum": (),
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
}
"""What torch calls the state columns of each rule, in the servers' order."""


def export_tables(
    optimizer: torch.optim.Optimizer, tables: ModelTables, steppers: Sequence[RowStepper]
) -> list[tuple[TableSpec, FilePart]]:
    """Return every table with its rows and optimizer state."""
    saved = []
    for stepper, (table, group) in zip(steppers, tables.sparse, strict=True):
        spec = spec_of(table, rule=_rule(optimizer, group, sparse=True))
        store = stepper.store
        count, names = store.num_rows, _STATES[spec.optimizer.rule]
        states = [store.column(name)[:count] for name in names]
        empty = np.empty((count, 0), np.float32)
        part = FilePart(
            ids=store.ids().copy(),
            values=store.values[:count].copy(),
            states=np.concatenate([empty, *states], axis=1),
        )
        saved.append((spec, part))
    for block, group in tables.dense:
        spec = _dense_spec(block, _rule(optimizer, group, sparse=False))
        states_SP = [
            _flat_state(optimizer, block, name, spec) for name in _STATES[spec.optimizer.rule]
        ]
        stacked = np.stack(states_SP) if states_SP else np.empty((0, block.size), np.float32)
        saved.append((spec, FilePart(values=block.values(), states=stacked)))
    return saved


def install_table(
    optimizer: torch.optim.Optimizer,
    target: RowStepper | DenseBlock,
    part: FilePart,
    *,
    steps: int,
    rule: str,
) -> None:
    """Put one part of a checkpoint in place.

    Args:
        optimizer: The user's optimizer; its dense state is set.
        target: The table's rows, or its dense parameters.
        part: Rows of a sparse table, or a range of a dense one.
        steps: Steps that the optimizer had taken.
        rule: The rule whose states the part holds.
    """
    names = _STATES[rule]
    if isinstance(target, RowStepper):
        assert part.ids is not None, "rows have ids"
        slots = target.store.slots(part.ids)
        target.store.values[slots] = part.values
        width = target.store.spec.dim
        columns = {
            name: part.states[:, index * width : (index + 1) * width]
            for index, name in enumerate(names)
        }
        target.restore(slots, columns, steps=steps)
        return
    values = target.values()
    values[part.start : part.start + len(part.values)] = part.values
    target.install(values)
    position = 0
    for parameter in target.parameters:
        where = slice(position - part.start, position - part.start + parameter.numel())
        position += parameter.numel()
        if where.start < 0 or where.stop > len(part.values) or not steps:
            continue
        state = optimizer.state[parameter]
        if rule in {"adagrad", "adam"}:
            state["step"] = torch.tensor(float(steps))
        for index, name in enumerate(names):
            piece = torch.from_numpy(part.states[index, where].copy())
            state[name] = piece.view(parameter.shape).to(parameter)


def _rule(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], *, sparse: bool
) -> OptimizerSpec:
    try:
        return server_rule(optimizer, group, sparse=sparse)
    except OptimizerNotServedError:
        return OptimizerSpec(rule="sum")


def _dense_spec(block: DenseBlock, rule: OptimizerSpec) -> TableSpec:
    return TableSpec(
        name=block.name,
        kind="dense",
        dim=1,
        size=block.size,
        num_shards=1,
        seed=0,
        initializer=InitializerSpec(kind="zeros"),
        optimizer=rule,
    )


def _flat_state(
    optimizer: torch.optim.Optimizer, block: DenseBlock, name: str, spec: TableSpec
) -> NDArray[np.float32]:
    """Return one state of a dense table, float32 [P]."""
    first = spec.optimizer.initial_accumulator_value if name == "sum" else 0.0
    parts = []
    for parameter in block.parameters:
        state = optimizer.state[parameter].get(name)
        if state is None:
            state = torch.full_like(parameter, first)
        parts.append(state.detach().reshape(-1).to("cpu", torch.float32))
    flat: NDArray[np.float32] = torch.cat(parts).numpy()
    return flat
