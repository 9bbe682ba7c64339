"""Which lookups of a forward are pulled together, and that each takes its own rows."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.forwards import Forwards
from paramfleet.training.modes.prefetching.ahead import Ahead, Wanted
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.batch import RowIds

PLACEMENT = Placement(endpoints=("h:1", "h:2"), num_shards=8)
DIM = 3


class Served:
    """A mode whose rows of id i are (i, i, i), and the requests that it made."""

    num_shards = 8
    by_id = False

    def __init__(self) -> None:
        self.step = 0
        self.requests: list[list[str]] = []
        self.creates: list[bool] = []
        self.ahead = Ahead(
            placement=PLACEMENT,
            read=lambda wanted: Read(
                table=wanted.table.name, rows=wanted.rows, dim=DIM, create=wanted.create
            ),
            pull=lambda _plan, _step: pytest.fail("nothing is asked for ahead"),
            step=lambda: self.step,
            when=lambda: "step",
        )

    def expect(self, wanted: Sequence[Wanted]) -> None:
        reads = [
            Read(table=each.table.name, rows=each.rows, dim=DIM, create=each.create)
            for each in wanted
        ]
        plan = ReadPlan(reads, PLACEMENT)
        answers = self._fetch(plan)
        self.ahead.begin_forward(wanted, (plan.join(answers), answers))

    def lookup(self, table: SparseTable, ids_U: Any, offsets: Any, *, create: bool) -> Any:
        found = self.ahead.take(table, ids_U, create=create)
        if found is not None:
            return found[0]
        rows = RowIds(ids_U, offsets)
        plan = ReadPlan([Read(table=table.name, rows=rows, dim=DIM, create=create)], PLACEMENT)
        return plan.join(self._fetch(plan))[0]

    def _fetch(self, plan: ReadPlan) -> list[Message]:
        self.requests.append([read.table for read in plan.reads])
        self.creates += [read.create for read in plan.reads]
        return [
            Message(
                tensors={
                    f"{index}.rows": np.repeat(
                        message.tensors[f"{index}.ids"].astype(np.float32)[:, None], DIM, axis=1
                    )
                    for index, _ in enumerate(plan.reads)
                }
            )
            for message in plan.messages(rank=0, min_step=0)
        ]


class Model(torch.nn.Module):
    """Sums rows of three tables; the last of ids that it computes."""

    def __init__(self, source: Served) -> None:
        super().__init__()
        self.first = fleet.nn.Embedding(0, DIM, name="first")
        self.second = fleet.nn.Embedding(0, DIM, name="second", padding_idx=0)
        self.computed = fleet.nn.Embedding(0, DIM, name="computed")
        for module in (self.first, self.second, self.computed):
            module.table.bind(source)
        self.skips = False

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        ids = batch["ids"]
        found = self.first(ids[:, 0]) + self.computed(ids[:, 2] + 1)
        if not self.skips:
            found = found + self.second(ids[:, 1])
        first: torch.Tensor = found[:, 0]
        return first


def batch_of(size: int, *, seed: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    return {"ids": torch.randint(0, 50, (size, 3), generator=random), "other": None}


def watched(source: Served) -> Model:
    model = Model(source)
    Forwards(lambda: source).watch(model)
    return model


def check(model: Model, batch: dict[str, Any]) -> None:
    ids = batch["ids"]
    expected = ids[:, 0] + ids[:, 2] + 1 + (0 if model.skips else ids[:, 1])
    assert torch.equal(model(batch), expected.float())


def test_lookups_that_the_input_shows_are_one_request() -> None:
    source = Served()
    model = watched(source)

    for seed, size in enumerate((4, 4, 2)):
        check(model, batch_of(size, seed=seed))
        source.step += 1

    first, *later = source.requests[:3], source.requests[3:5], source.requests[5:]
    assert first == [["first"], ["computed"], ["second"]], "it is watched"
    assert later == [[["first", "second"], ["computed"]]] * 2


def test_an_evaluation_creates_no_rows() -> None:
    source = Served()
    model = watched(source)
    check(model, batch_of(4, seed=0))
    model.eval()
    source.creates.clear()

    check(model, batch_of(4, seed=1))

    assert source.requests[-2:] == [["first", "second"], ["computed"]]
    assert source.creates == [False] * 3


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_gradients_creates_no_rows(without: Any) -> None:
    source = Served()
    model = watched(source)
    check(model, batch_of(4, seed=0))
    source.creates.clear()

    with without():
        check(model, batch_of(4, seed=1))

    assert source.requests[-2:] == [["first", "second"], ["computed"]]
    assert source.creates == [False] * 3


def test_what_a_forward_does_not_look_up_is_not_asked_for_again() -> None:
    source = Served()
    model = watched(source)
    check(model, batch_of(4, seed=0))
    model.skips = True

    check(model, batch_of(4, seed=1))
    source.requests.clear()
    check(model, batch_of(4, seed=2))

    assert source.requests == [["first"], ["computed"]]


def test_ids_that_change_on_the_way_are_pulled_by_their_lookup() -> None:
    source = Served()
    model = watched(source)
    check(model, batch_of(4, seed=0))
    model.first.register_forward_pre_hook(lambda _, args: (args[0] + 5,))
    batch = batch_of(4, seed=1)

    found = model(batch)

    ids = batch["ids"]
    assert torch.equal(found, (ids.sum(1) + 6).float())
    assert source.requests[3:] == [["first", "second"], ["first"], ["computed"]]


def test_rows_of_a_forward_that_failed_are_forgotten() -> None:
    source = Served()
    model = watched(source)
    check(model, batch_of(4, seed=0))
    fails = model.first.register_forward_pre_hook(lambda _, args: args[0].no_such_name)
    with pytest.raises(AttributeError):
        model(batch_of(4, seed=1))
    fails.remove()
    source.requests.clear()

    check(model, batch_of(4, seed=1))

    assert source.requests == [["first"], ["computed"], ["second"]]


def test_an_id_that_is_none_is_its_lookups_error() -> None:
    source = Served()
    model = watched(source)
    check(model, batch_of(4, seed=0))

    with pytest.raises(fleet.nn.IdError):
        model({"ids": torch.tensor([[1, 2, 3], [-1, 2, 3]])})

    check(model, batch_of(4, seed=2))


def test_a_copy_of_a_watched_model_asks_for_nothing() -> None:
    alone = torch.nn.Sequential(torch.nn.Linear(1, 1))
    Forwards(lambda: pytest.fail("nobody asks for the copy")).watch(alone)

    copied = copy.deepcopy(alone)

    assert copied(torch.ones(1, 1)).shape == (1, 1)
