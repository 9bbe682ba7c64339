"""Values without a gradient aren't stepped, and count their own steps, as in torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paramfleet_pserver.tables.parts import DensePart, SetValues, Stepping
from paramfleet_pserver.tables.table import DenseTable
from paramfleet_shared.tables.encoding import WireDtype, decode_rows, encode_rows
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.spans import Span, union

BOUNDS: tuple[Span, ...] = ((0, 40), (40, 45), (45, 190), (190, 200))
"""Of the parameters: they begin where no scale of a narrow format does."""

RULES: dict[str, tuple[OptimizerSpec, Callable[[Any], torch.optim.Optimizer]]] = {
    "adam": (
        OptimizerSpec(rule="adam", weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    ),
    "damped": (
        OptimizerSpec(rule="momentum", momentum=0.9, dampening=0.5),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    ),
    "adagrad": (
        OptimizerSpec(rule="adagrad", lr_decay=0.1, eps=1e-10),
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    ),
}


def spans_of(chosen: np.ndarray) -> tuple[Span, ...] | None:
    if chosen.all():
        return None
    return union(span for span, is_chosen in zip(BOUNDS, chosen, strict=True) if is_chosen)


def act(table: DenseTable, parts: list[DensePart], by: Stepping) -> None:
    for job in table.update_jobs(parts, by):
        job.act()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8"])
def test_parameters_that_some_workers_use_now_and_then_step_as_in_torch(
    rule: str, wire: WireDtype
) -> None:
    spec, make = RULES[rule]
    table = DenseTable(
        TableSpec(name="flat", kind="dense", size=200, num_shards=1, optimizer=spec),
        range(1),
        owner=0,
    )
    first = table.range.values.copy()
    own = [torch.nn.Parameter(torch.from_numpy(first[a:b].copy())) for a, b in BOUNDS]
    optimizer = make(own)
    random = np.random.default_rng(0)

    for _ in range(12):
        used = random.random((2, len(BOUNDS))) < 0.5
        grads = [random.normal(size=200).astype(np.float32) for _ in used]
        for given, chosen in zip(grads, used, strict=True):
            for (start, stop), is_chosen in zip(BOUNDS, chosen, strict=True):
                given[start:stop] *= is_chosen
        sent = [encode_rows(given, wire) for given in grads]
        parts = [
            DensePart(each, wire, scale=0.5, spans=spans_of(chosen))
            for each, chosen in zip(sent, used, strict=True)
            if chosen.any()
        ]
        if parts:
            act(table, parts, Stepping(0.1, table.next_update()))
        total = sum(0.5 * decode_rows(each, wire) for each in sent)
        for (start, stop), parameter, is_used in zip(
            BOUNDS, own, list(np.any(used, axis=0)), strict=True
        ):
            part = torch.from_numpy(np.asarray(total, np.float32)[start:stop].copy())
            parameter.grad = part if is_used else None
        optimizer.step()

    values = np.concatenate([parameter.detach().numpy() for parameter in own])
    np.testing.assert_allclose(table.range.values, values, rtol=1e-5, atol=1e-5)
    assert table.missed


def test_of_values_that_several_set_the_first_counts_and_that_is_no_update() -> None:
    spec = TableSpec(name="flat", kind="dense", size=4, num_shards=1)
    table = DenseTable(spec, range(1), owner=0)
    nothing = encode_rows(np.zeros(4, np.float32), "float32")

    def part(places: list[int], values: list[float]) -> DensePart:
        given = SetValues(np.array(places), np.array(values, np.float32))
        return DensePart(nothing, spans=(), set_before=given, is_update=False)

    act(table, [part([0, 1], [1.0, 1.0]), part([1, 2], [2.0, 2.0])], Stepping(0.1, 0))

    assert table.range.values.tolist() == [1.0, 1.0, 2.0, 0.0]
    assert table.range.is_untouched
    assert not table.missed
