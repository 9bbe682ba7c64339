"""Embeddings that don't give each id a row, trained in one process."""

from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import (
    CountFilterEntry,
    EmbeddingOptionError,
    EntryOptionError,
    ProbabilityEntry,
)
from paramfleet.session.session import Session
from paramfleet.tables.row_store import RowStore
from paramfleet_shared.tables.spec import EntrySpec

NAMED = {"sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}
"""One that kernels step by, and one that steps rows itself."""


def trained(module: torch.nn.Module, optimizer: str = "sgd") -> Any:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(module)
    made = session.distributed_optimizer(NAMED[optimizer](model.parameters(), lr=0.5))
    session.init_worker()
    return made


def ids_with_a_row(module: Any) -> list[int]:
    store = module.table.source
    assert isinstance(store, RowStore)
    return sorted(store.live_ids().tolist())


@pytest.mark.parametrize("optimizer", NAMED)
def test_an_id_gets_a_row_at_the_step_that_uses_it_for_the_nth_time(optimizer: str) -> None:
    module = fleet.nn.Embedding(0, 2, entry=CountFilterEntry(3))
    steps = trained(module, optimizer)
    first = module(torch.tensor([7])).detach().clone()

    for used in ([7, 9], [7], [8, 7]):
        assert torch.equal(module(torch.tensor([7])), first)
        steps.minimize(module(torch.tensor(used)).sum())

    assert ids_with_a_row(module) == [7]
    assert not torch.equal(module(torch.tensor([7])), first)


@pytest.mark.parametrize("optimizer", NAMED)
def test_rows_that_are_admitted_train_as_without_an_entry(optimizer: str) -> None:
    found = []
    for entry in (None, ProbabilityEntry(0.5)):
        module = fleet.nn.Embedding(0, 2, name="t", entry=entry)
        steps = trained(module, optimizer)
        for number in range(5):
            ids = torch.arange(40) * (number + 1)
            steps.minimize(module(ids).square().mean())
        found.append(module)
    plain, some = found

    admitted = ids_with_a_row(some)
    assert 0 < len(admitted) < len(ids_with_a_row(plain))
    assert torch.equal(some(torch.tensor(admitted)), plain(torch.tensor(admitted)))


def test_an_entry_and_an_accessor_go_together() -> None:
    accessor = fleet.nn.CtrAccessor()
    module = fleet.nn.Embedding(0, 2, entry=CountFilterEntry(2), accessor=accessor)
    steps = trained(module)

    for used in ([1, 2], [2]):
        steps.minimize(module(torch.tensor(used)).sum())

    assert ids_with_a_row(module) == [2]
    store = module.table.source
    counts = store.lookup(module.table, np.array([2]), np.array([0, 1]), create=False)[:, :2]
    assert counts.tolist() == [[1, 0]], "from the push that admits it"


@pytest.mark.parametrize("count", [0, 1])
def test_a_count_of_one_admits_all(count: int) -> None:
    assert CountFilterEntry(count).spec == EntrySpec()


@pytest.mark.parametrize("count", [-1, 256, 1.0, True, "3"])
def test_a_count_that_is_none_is_named(count: Any) -> None:
    with pytest.raises(EntryOptionError, match=r"CountFilterEntry\(.*must be"):
        CountFilterEntry(count)


@pytest.mark.parametrize("share", [0, 1, 1.0, -0.5, float("nan"), "0.5", True])
def test_a_probability_that_is_none_is_named(share: Any) -> None:
    with pytest.raises(EntryOptionError, match=r"ProbabilityEntry\(.*between 0 and 1"):
        ProbabilityEntry(share)


def test_something_else_is_no_entry() -> None:
    with pytest.raises(EmbeddingOptionError) as raised:
        fleet.nn.Embedding(0, 2, entry=3)  # type: ignore[arg-type]  # a mistake
    assert raised.value.option == "entry"
