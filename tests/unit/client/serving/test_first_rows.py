"""What an unknown id reads is, bit for bit, what a pserver would make."""

from typing import Any

import pytest
import torch

from paramfleet.serving.firsts import first_rows, stored
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.spec import (
    InitializerSpec,
    OptimizerSpec,
    TableSpec,
    stream_of,
)

EDGES = [0, 1, -1, 2**63 - 1, -(2**63), 1 << 32, 1 << 52]


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "initializer",
    [
        InitializerSpec(),
        InitializerSpec(kind="constant", value=0.1),
        InitializerSpec(kind="uniform", low=-0.1, high=0.3),
        InitializerSpec(kind="normal", mean=0.2, std=0.7),
        InitializerSpec(kind="normal", std=60_000.0),
    ],
    ids=["zeros", "constant", "uniform", "normal", "beyond_float16"],
)
def test_first_rows_are_the_job_s_to_the_bit(
    initializer: InitializerSpec, storage: Any
) -> None:
    numbers = torch.Generator().manual_seed(0)
    ids = torch.randint(-(2**63), 2**63 - 1, (3000,), generator=numbers)
    ids = torch.cat([torch.tensor(EDGES), ids])
    spec = TableSpec(
        name="a/b", kind="sparse", dim=7, seed=-5, initializer=initializer, storage=storage
    )

    rows = stored(first_rows(initializer, stream_of(-5, "a/b"), ids, 7), storage)

    assert torch.equal(rows, torch.from_numpy(initial_rows(spec, ids.numpy())))


@pytest.mark.parametrize(("zero_init", "dim"), [(False, 7), (True, 3)])
@pytest.mark.parametrize("kind", ["normal", "uniform", "constant"])
def test_first_rows_are_drawn_in_a_part_where_the_job_draws_them_so(
    kind: Any, zero_init: Any, dim: int
) -> None:
    initializer = InitializerSpec(kind=kind, value=0.1, low=-1.0, high=1.0, std=0.7)
    rule = OptimizerSpec(rule="ctr", zero_init=zero_init)
    spec = TableSpec(name="a", kind="sparse", dim=dim, initializer=initializer, optimizer=rule)
    ids = torch.tensor([*EDGES, 5, 6])

    drawn = spec.drawn.start, spec.drawn.stop
    rows = first_rows(initializer, stream_of(0, "a"), ids, dim, drawn)

    expected = torch.from_numpy(initial_rows(spec, ids.numpy()))
    assert torch.equal(rows, expected)
    assert bool(expected[:, 2].all())
