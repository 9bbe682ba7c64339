"""Options of an optimizer that change while the pservers run it: numbers travel."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.strategy import TrainingMode
from paramfleet.model_state.agreement import Agreement
from paramfleet.tables.rules import RuleChangedError
from paramfleet.training.modes.base import collect_tables
from paramfleet.training.modes.sync import SyncMode
from paramfleet.transport.requests import Author
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.tables.spec import TableSpecError


def mode_of(optimizer: torch.optim.Optimizer) -> SyncMode:
    """Return a mode that has no connections: what is looked at comes before them."""
    job: Any = SimpleNamespace(
        placement=Placement(endpoints=("h:1",), num_shards=4),
        author=Author(rank=0, incarnation=1),
        agreement=Agreement(None),
    )
    return SyncMode(job, TrainingMode(name="sync"), optimizer, collect_tables(optimizer))


def parameters() -> list[torch.nn.Parameter]:
    rows = fleet.nn.Embedding(0, 3, name="rows")
    return [*rows.parameters(), *torch.nn.Linear(2, 2).parameters()]


@pytest.mark.parametrize("num_looks", [0, 1, 2])
def test_another_rule_is_refused_however_often_it_was_the_same(num_looks: int) -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.1, momentum=0.9)
    mode = mode_of(optimizer)
    for _ in range(num_looks):
        mode.check_rules()
    optimizer.param_groups[0]["momentum"] = 0.0

    for _ in range(2):
        with pytest.raises(RuleChangedError):
            mode.check_rules()

    optimizer.param_groups[0]["momentum"] = 0.9
    mode.check_rules()


def test_numbers_that_changed_travel_alone_and_no_longer_than_they_differ() -> None:
    optimizer = torch.optim.Adam(parameters(), lr=0.1)
    optimizer.param_groups[0]["betas"] = betas = [0.9, 0.999]
    mode = mode_of(optimizer)
    mode.check_rules()
    assert mode.numbers == {"rows": {}, "dense_0": {}}
    betas[0] = 0.5

    mode.check_rules()
    assert mode.numbers == {"rows": {"beta1": 0.5}, "dense_0": {"beta1": 0.5}}

    betas[0] = 0.9
    mode.check_rules()
    assert mode.numbers == {"rows": {}, "dense_0": {}}


def test_a_first_state_may_change_since_no_row_begins_with_it_in_torch() -> None:
    optimizer = torch.optim.Adagrad(parameters(), lr=0.1, initial_accumulator_value=0.5)
    mode = mode_of(optimizer)
    optimizer.param_groups[0]["initial_accumulator_value"] = 0.75

    mode.check_rules()

    assert mode.numbers == {"rows": {}, "dense_0": {}}


def test_a_number_outside_of_its_range_is_refused_before_the_step() -> None:
    optimizer = torch.optim.Adam(parameters(), lr=0.1)
    mode = mode_of(optimizer)
    optimizer.param_groups[0]["betas"] = (1.5, 0.999)

    with pytest.raises(TableSpecError, match="beta1"):
        mode.check_rules()


def test_the_learning_rate_may_change() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    mode = mode_of(optimizer)
    mode.check_rules()
    optimizer.param_groups[0]["lr"] = 0.01

    mode.check_rules()
