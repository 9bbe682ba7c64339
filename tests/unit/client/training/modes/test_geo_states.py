"""What a GEO worker begins with of a checkpoint's optimizer states."""

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.training.modes.geo.states import GeoStates
from paramfleet.training.modes.local import LocalMode

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
