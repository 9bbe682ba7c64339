"""A table says how old its rows are, and what they are worth."""

from typing import Any

import numpy as np
import pytest

from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec


def table_of(optimizer: OptimizerSpec) -> SparseTable:
    store = TableStore(shards=range(8), num_shards=8, num_owners=2)
    spec = TableSpec(name="t", kind="sparse", dim=3, num_shards=8, optimizer=optimizer)
    table = store.build(spec)
    assert isinstance(table, SparseTable)
    return table


def push(table: SparseTable, ids: range, now: int) -> None:
    for block, some in zip(table.blocks, (ids[::2], ids[1::2]), strict=True):
        rows = np.ones((len(some), 3), np.float32)
        block.rows.push(np.array(some), rows, lr=0.1, step=1, now=now)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (OptimizerSpec(tracks="step"), {"ages": [0.0, 3.0, 3.0]}),
        (OptimizerSpec(rule="ctr"), {"ages": [0.0, 3.0, 3.0], "scores": [0.9412, 0.9412, 1.0]}),
        (OptimizerSpec(), {}),
    ],
)
async def test_ages_and_scores_are_quantiles_of_some_rows(
    optimizer: OptimizerSpec, expected: dict[str, Any]
) -> None:
    table, owners = table_of(optimizer), Owners(2)
    push(table, range(60), now=100)
    push(table, range(60, 100), now=103)
    assert "ages" not in table.facts()

    table.sample(owners)
    await owners.settle()
    await owners.close()

    facts = table.facts()
    assert {name: facts[name] for name in ("ages", "scores") if name in facts} == expected
