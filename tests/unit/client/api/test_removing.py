"""Rows that a script removes: which, how often, and what they are later."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.api.prefetching import Prefetching
from paramfleet.api.removing import NotATableError, Removing
from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import RoleMaker
from paramfleet.nn.embedding import IdError
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.training.collective.errors import WrongModeError
from paramfleet.training.modes.local import LocalMode
from paramfleet.training.optimizer import TableUnknownError, TrainingFinishedError

IDS = torch.arange(20)


def optimizers() -> dict[str, Any]:
    """Return some that kernels step, and one that torch does."""
    return {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.1),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    }


class Alone:
    """One process with a table of rows, some of which it has trained."""

    def __init__(self, kind: str = "adagrad") -> None:
        self.session = Session()
        self.session.init(RoleMaker(distributed=False))
        first = fleet.nn.uniform(-1.0, 1.0)
        self.rows = fleet.nn.Embedding(9, 3, name="rows", initializer=first)
        other = fleet.nn.Embedding(9, 3, name="other", initializer=first)
        self.model = self.session.distributed_model(torch.nn.ModuleList([self.rows, other]))
        inner = optimizers()[kind](self.model.parameters())
        self.optimizer = self.session.distributed_optimizer(inner)
        self.remove_rows = Removing(self.session).remove_rows

    def train(self, ids: Any = IDS, steps: int = 3) -> None:
        for _ in range(steps):
            self.optimizer.minimize(sum(each(ids).pow(2).sum() for each in self.model))

    def held(self, ids: Any = IDS) -> np.ndarray:
        self.model.eval()
        with torch.no_grad():
            rows: np.ndarray = self.rows(ids).numpy()
        self.model.train()
        return rows

    @property
    def num_rows(self) -> int:
        mode = self.optimizer.running
        assert isinstance(mode, LocalMode)
        return mode.steppers[0].store.num_rows


@pytest.mark.parametrize("kind", optimizers())
def test_a_removed_row_begins_anew_with_its_first_value_and_states(kind: str) -> None:
    alone, fresh = Alone(kind), Alone(kind)
    first = alone.held()
    alone.train()
    trained = alone.held()

    assert alone.remove_rows(alone.rows, torch.arange(5)) == 5

    assert alone.num_rows == 15
    np.testing.assert_array_equal(alone.held()[:5], first[:5])
    np.testing.assert_array_equal(alone.held()[5:], trained[5:])
    fresh.train(torch.arange(100, 120))  # as many steps, of other rows
    for each in (alone, fresh):
        each.train(torch.arange(5), steps=2)
    np.testing.assert_array_equal(alone.held(torch.arange(5)), fresh.held(torch.arange(5)))


@pytest.mark.parametrize(
    ("ids", "num"),
    [
        (torch.tensor([3, 4, 3]), 2),
        (torch.tensor([3, 4, 1000], dtype=torch.int32), 2),
        (np.array([19, -1, 20]), 1),
        ([0, 0, 1, 10**15], 2),
        (range(30), 20),
        ([], 0),
        (torch.tensor(3), 1),
        (torch.tensor([[3, 4], [4, 1000]]), 2),
        (np.arange(24).reshape(2, 3, 4), 20),
        ([[3, 4], [5, 6]], 4),
        (torch.empty(0, dtype=torch.int64), 0),
    ],
)
def test_what_is_returned_is_how_many_rows_there_were(ids: Any, num: int) -> None:
    alone = Alone()
    alone.train()

    assert alone.remove_rows("rows", ids) == num

    assert alone.num_rows == 20 - num
    assert alone.remove_rows("rows", ids) == 0


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (torch.tensor([1.0]), "dtype float32: ids must be int64 or int32"),
        (torch.tensor([True]), "dtype bool"),
        (np.array([1], np.uint64), "dtype uint64: .* keeps the bits"),
        (np.empty(0, np.float32), "dtype float32"),
        (["a"], "dtype <U1"),
        ([2**63], "dtype"),
        ([[1], [2, 3]], "lists of several lengths: give a list of ids, or"),
    ],
)
def test_what_are_no_ids_is_refused_and_nothing_is_removed(ids: Any, says: str) -> None:
    alone = Alone()
    alone.train()

    with pytest.raises(IdError, match=rf"table 'rows': {says}"):
        alone.remove_rows(alone.rows, ids)

    assert alone.num_rows == 20


def test_a_table_that_is_not_trained_is_refused_by_name() -> None:
    alone = Alone()

    with pytest.raises(
        TableUnknownError, match="no table 'rose' of rows; it trains: rows, oth"
    ):
        alone.remove_rows("rose", IDS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.nn.Linear(2, 1), "not Linear; the optimizer trains: rows, other"),
        (torch.nn.Embedding(3, 4), "not Embedding; the optimizer trains: rows, other"),
        (torch.nn.ModuleList([]), "not ModuleList; "),
        (torch.zeros(3), "not Tensor; "),
        (None, "not NoneType; "),
        (3, "not int; "),
    ],
)
def test_what_is_no_table_is_refused_with_what_may_be_given(given: Any, says: str) -> None:
    with pytest.raises(NotATableError, match=r"takes a fleet.nn module .*, and " + says):
        Alone().remove_rows(given, IDS)


@pytest.mark.parametrize(
    ("given", "says"), [(3, "not int; "), (torch.zeros(3), "not Tensor; ")]
)
def test_rows_are_prefetched_of_the_same_tables(given: Any, says: str) -> None:
    alone = Alone()
    prefetch_rows = Prefetching(alone.session).prefetch_rows
    alone.train()

    for table in (alone.rows, "other"):
        coming = prefetch_rows(table, torch.tensor([[3, 4], [4, 5]]))
        assert coming.is_done
        coming.cancel()
        assert coming.wait() == (0, 0, False)
    with pytest.raises(NotATableError, match="fleet.prefetch_rows takes .*, and " + says):
        prefetch_rows(given, IDS)
    with pytest.raises(IdError):
        prefetch_rows("rows", torch.tensor([0.5]))
    with pytest.raises(TableUnknownError):
        prefetch_rows("rose", IDS)
    alone.optimizer.finish()
    with pytest.raises(TrainingFinishedError):
        prefetch_rows("rows", IDS)


def test_a_module_of_another_model_is_refused_also_if_its_table_has_the_same_name() -> None:
    alone = Alone()
    alone.train()
    others = fleet.nn.Embedding(9, 8, name="rows"), fleet.nn.Embedding(9, 3, name="rows")

    for other in others:
        with pytest.raises(NotATableError, match=rf"'rows', row width {other.embedding_dim};"):
            alone.remove_rows(other, IDS)
    with pytest.raises(TableUnknownError, match="no table 'mine'"):
        alone.remove_rows(fleet.nn.Embedding(9, 3, name="mine"), IDS)

    assert alone.num_rows == 20


def test_it_belongs_between_the_optimizer_and_the_end() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    with pytest.raises(CallOrderError, match="distributed_optimizer"):
        Removing(session).remove_rows("rows", IDS)
    alone = Alone()
    alone.session.finish_training()
    with pytest.raises(TrainingFinishedError):
        alone.remove_rows("rows", IDS)


def test_no_row_is_removed_while_gradients_wait_for_their_step() -> None:
    alone = Alone()
    alone.train()
    alone.model[1](IDS).sum().backward()  # of the other table

    with pytest.raises(CallOrderError, match=r"remove_rows\(\): .* between two steps"):
        alone.remove_rows("rows", [1])

    assert alone.num_rows == 20
    alone.optimizer.step()
    assert alone.remove_rows("rows", [1]) == 1, "the gradients are of a step that is over"
    alone.rows(IDS).sum().backward()
    alone.optimizer.zero_grad()
    assert alone.remove_rows("rows", [2]) == 1, "and these are of none"


def test_a_row_may_be_removed_between_forward_and_backward() -> None:
    alone = Alone()
    alone.train()
    loss = alone.rows(IDS).pow(2).sum()

    assert alone.remove_rows("rows", [1, 2]) == 2
    alone.optimizer.minimize(loss)

    assert alone.num_rows == 20


def test_training_apart_has_no_rows_to_remove() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(torch.nn.Linear(2, 1))
    strategy = fleet.DistributedStrategy()
    strategy.localsgd = True
    session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), strategy)

    with pytest.raises(WrongModeError, match=r"strategy.localsgd: its models have no tables"):
        Removing(session).remove_rows("rows", IDS)


@pytest.mark.parametrize("kind", ["adam", "adagrad"])
def test_what_is_saved_after_a_removal_is_what_is_left(tmp_path: Path, kind: str) -> None:
    alone, other = Alone(kind), Alone(kind)
    alone.train()
    alone.remove_rows("rows", range(0, 20, 2))
    alone.train(torch.arange(100, 104))

    Saving(alone.session).save_persistables(tmp_path / "c")
    ids, rows = fleet.load_rows(tmp_path / "c", "rows")
    other.train(torch.arange(200, 230))
    other.remove_rows("rows", [200, 210])
    Saving(other.session).load_model(tmp_path / "c")

    everything = torch.tensor([*range(20), *range(100, 104), 200, 201])
    assert sorted(ids.tolist()) == [*range(1, 20, 2), *range(100, 104)]
    np.testing.assert_array_equal(rows, alone.held(torch.from_numpy(ids.copy())))
    np.testing.assert_array_equal(other.held(everything), alone.held(everything))
    for each in (alone, other):
        each.train(everything)
    np.testing.assert_array_equal(other.held(everything), alone.held(everything))


def test_memory_of_removed_rows_serves_new_ones() -> None:
    alone = Alone()
    alone.train(torch.arange(20_000), steps=1)
    mode = alone.optimizer.running
    assert isinstance(mode, LocalMode)
    store = mode.steppers[0].store

    for turn in range(1, 4):
        assert alone.remove_rows("rows", range(20_000 * (turn - 1), 20_000 * turn)) == 20_000
        alone.train(torch.arange(20_000 * turn, 20_000 * (turn + 1)), steps=1)

    assert store.num_rows == store.num_slots == 20_000
