"""What a GEO worker begins with of a checkpoint's optimizer states."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.training.loaded_states import states_not_used
from paramfleet.training.modes.base import collect_tables
from paramfleet.training.modes.geo.states import GeoStates
from paramfleet.training.modes.local import LocalMode
from paramfleet_shared.checkpoint.manifest import SavedTable
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.spec import OptimizerSpec

FIRST = 0.25


def test_the_shares_of_those_who_load_together_are_what_was_saved() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(
            fleet.nn.Embedding(0, 2, name="rows"), torch.nn.Linear(2, 1, bias=False)
        )
    )
    inner = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=FIRST)
    optimizer = session.distributed_optimizer(inner)
    optimizer.minimize(model(torch.tensor([3, 5])).sum())
    mode = optimizer.running
    assert isinstance(mode, LocalMode)
    (stepper,) = mode.steppers
    states = GeoStates(inner, optimizer.tables, mode.steppers, workers=2)
    rows, dense = states.specs()
    saved = np.array([[1.75, 0.25], [3.25, 1.0]], np.float32)

    states.begin(workers=3)  # another one came since this one did
    states.take_rows(rows, np.array([5, 3]), saved, steps=4)
    states.take_values(dense, 0, saved[:1], steps=4)

    share = FIRST + (saved - FIRST) / 3
    slots = stepper.store.held(np.array([5, 3]))
    np.testing.assert_allclose(stepper.store.column("sum")[slots], share, rtol=1e-6)
    (block, _) = optimizer.tables.dense[0]
    found = inner.state[block.parameters[0]]["sum"].numpy()
    np.testing.assert_allclose(found, share[:1], rtol=1e-6)


def test_steps_of_a_dropped_row_are_not_counted_for_the_one_in_its_place() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(0, 2, name="rows"), torch.nn.Linear(2, 1))
    )
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = session.distributed_optimizer(inner)
    optimizer.minimize(model(torch.tensor([3, 5])).sum())
    mode = optimizer.running
    assert isinstance(mode, LocalMode)
    (stepper,) = mode.steppers
    states = GeoStates(inner, optimizer.tables, mode.steppers, workers=2)
    for _ in range(2):
        states.note(stepper, stepper.store.slots(np.array([3, 5])))

    states.forget("rows", stepper.store.remove(np.array([5])))
    stepper.store.slots(np.array([7]))

    fields = {"table": "rows", "rule": states.specs()[0].optimizer.rule}
    held = states.answer(Message(fields=fields, tensors={"ids": np.array([3, 5, 7])}))
    assert held.tensors["counts"].tolist()[0] == 2
    assert held.tensors["counts"].tolist()[2] == 0
    assert not held.tensors["states"][2].any()
    assert held.tensors["states"][0].any()


@pytest.mark.parametrize(
    ("make", "rule"),
    [(torch.optim.Adam, "adam"), (torch.optim.RMSprop, "RMSprop"), (torch.optim.SGD, "SGD")],
)
def test_states_that_are_not_used_are_named_with_both_kinds(make: Any, rule: str) -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(0, 2, name="rows"), torch.nn.Linear(2, 1))
    )
    optimizer = session.distributed_optimizer(torch.optim.Adagrad(model.parameters()))
    mode = optimizer.running
    assert isinstance(mode, LocalMode)
    saved = [
        *GeoStates(optimizer.inner, optimizer.tables, mode.steppers, workers=1).specs(),
        replace(mode.steppers[0].store.spec, name="gone", optimizer=OptimizerSpec(rule="adam")),
    ]
    tables = {spec.name: SavedTable(spec=spec, version=1) for spec in saved}
    other = make(model.parameters())
    states = GeoStates(other, collect_tables(other), mode.steppers, workers=1)

    assert states_not_used(tables, states) == [
        {"table": name, "saved": "adagrad", "rule": rule} for name in ("rows", "dense_0")
    ]
