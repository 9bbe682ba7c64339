"""Rows step as torch's own optimizer steps a dense weight."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch

from paramfleet.tables.row_store import RowStore
from paramfleet.tables.sparse import SparseTable
from paramfleet.training import optim
from paramfleet.training.modes.rowstep import RowStepper, step_rows
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.spec import InitializerSpec

NUM_IDS, DIM = 20, 11
"""A row is a whole vector of floats and a rest."""

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


class Pair:
    """Rows of a table, and a dense weight that starts as they do."""

    def __init__(self, make: Make, reference: Make | None = None, **counts: Any) -> None:
        initializer = InitializerSpec(kind="uniform", low=-1.0, high=1.0)
        self.table = SparseTable(
            name="t", dim=DIM, initializer=initializer, seed=3, make_source=RowStore.of
        )
        self.store = RowStore.of(self.table)
        self.table.bind(self.store)
        everything = np.arange(NUM_IDS, dtype=np.int64)
        first = self.store.values[self.store.slots(everything)].copy()
        self.weight = torch.nn.Parameter(torch.from_numpy(first))
        self.optimizer = make([self.table.weight])
        self.reference = (reference or make)([self.weight])
        group = self.optimizer.param_groups[0]
        self.stepper = RowStepper(self.optimizer, group, self.table, self.store, **counts)
        self._dice = np.random.default_rng(0)

    def step(self, ids: np.ndarray, *, sparse: bool = False) -> None:
        self.step_by(self._dice.standard_normal((len(ids), DIM)), ids, sparse=sparse)

    def step_by(self, gradients: Any, ids: np.ndarray, *, sparse: bool = False) -> None:
        """Step with gradients, [n, D] or one number for all."""
        gradient = np.broadcast_to(gradients, (len(ids), DIM)).astype(np.float32)
        unique, inverse, offsets = partition(ids, 1)
        rows = self.table.rows(unique, offsets)
        (rows[torch.from_numpy(inverse)] * torch.from_numpy(gradient)).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        whole = torch.zeros(NUM_IDS, DIM).index_add_(
            0, torch.from_numpy(ids), torch.from_numpy(gradient)
        )
        self.weight.grad = whole.to_sparse(1) if sparse else whole
        step_rows([self.stepper], self.optimizer)
        self.reference.step()
        self.table.weight.grad = None

    def assert_equal(self) -> None:
        slots = self.store.slots(np.arange(NUM_IDS, dtype=np.int64))
        want = self.weight.detach().numpy()
        np.testing.assert_allclose(self.store.values[slots], want, rtol=0, atol=1e-6)

    def set(self, **options: Any) -> None:
        for optimizer in (self.optimizer, self.reference):
            optimizer.param_groups[0].update(options)


def everybody() -> np.ndarray:
    return np.random.default_rng(1).permutation(NUM_IDS).astype(np.int64)


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.4),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(
        p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2
    ),
    "decayed": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam, decayed": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw, decayed": lambda p: torch.optim.AdamW(p, lr=0.1),
    "ftrl": lambda p: optim.FTRL(p, lr=0.1, beta=0.5, l1=0.5, l2=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
}


LAZY: dict[str, Make] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0),
}
"""Those whose rows step as torch.optim.SparseAdam's."""

OF_ROWS: dict[str, Make] = {
    **OPTIMIZERS,
    "rowwise": lambda p: optim.RowwiseAdagrad(p, lr=0.1, initial_accumulator_value=0.2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_that_all_have_gradients_step_as_a_dense_weight_does(name: str) -> None:
    pair = Pair(OPTIMIZERS[name])

    for _ in range(6):
        pair.step(everybody())

    pair.assert_equal()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch's Adagrad
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam", "adamw", "rowwise", "ftrl"])
def test_rows_of_a_batch_step_as_under_a_sparse_gradient(name: str) -> None:
    lazy: Make = lambda p: torch.optim.SparseAdam(p, lr=0.1)  # noqa: E731
    pair = Pair(*((LAZY[name], lazy) if name in LAZY else (OF_ROWS[name],)))
    dice = np.random.default_rng(2)

    for _ in range(8):
        pair.step(dice.integers(0, NUM_IDS, 15), sparse=True)

    pair.assert_equal()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("momentum", {"momentum": 0.5, "lr": 0.03}),
        ("momentum", {"weight_decay": 0.1}),
        ("decayed", {"weight_decay": 0.0}),
        ("adagrad", {"weight_decay": 0.1}),
        ("adagrad", {"eps": 1e-3, "maximize": True}),
    ],
)
def test_options_that_change_between_steps_count_from_the_next_on(
    name: str, options: dict[str, Any]
) -> None:
    pair = Pair(OPTIMIZERS[name])
    for _ in range(3):
        pair.step(everybody())

    pair.set(**options)
    for _ in range(3):
        pair.step(everybody())

    pair.assert_equal()


def test_momentum_that_begins_later_starts_from_nothing() -> None:
    pair = Pair(OPTIMIZERS["sgd"])
    pair.step(everybody())

    pair.set(momentum=0.9)
    for _ in range(3):
        pair.step(everybody())

    pair.assert_equal()


def test_a_step_without_a_gradient_moves_no_row() -> None:
    pair = Pair(OPTIMIZERS["momentum"])
    pair.step(everybody())
    before = pair.store.values[:NUM_IDS].copy()

    stepped = step_rows([pair.stepper], pair.optimizer)

    assert stepped == [None]
    np.testing.assert_array_equal(pair.store.values[:NUM_IDS], before)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_one_step_of_a_worker_counts_for_those_of_all(optimizer: type[Any]) -> None:
    def make(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return cast("torch.optim.Optimizer", optimizer(parameters, lr=0.01))

    pair = Pair(make, steps_at_once=3)
    for _ in range(4):
        pair.step(np.arange(NUM_IDS, dtype=np.int64))
        pair.assert_equal()
        pair.reference.state[pair.weight]["step"] += 2


def test_adam_of_a_worker_moves_a_row_as_one_process_with_all_gradients() -> None:
    def make(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    one, all_three = Pair(make, steps_at_once=3, for_all=True), Pair(make)
    everything = np.arange(NUM_IDS, dtype=np.int64)
    for _ in range(4):
        moved = []
        for pair, times in ((one, 1), (all_three, 3)):
            for _ in range(times - 1):
                pair.step_by(1.0, everything)
            before = pair.store.values[pair.store.slots(everything)].copy()
            pair.step_by(1.0, everything)
            moved.append(pair.store.values[pair.store.slots(everything)] - before)

        np.testing.assert_allclose(moved[0], moved[1], rtol=1e-4)
        for name in ("exp_avg", "exp_avg_sq"):
            held = [p.store.column(name)[p.store.slots(everything)] for p in (one, all_three)]
            np.testing.assert_allclose(held[0], held[1], rtol=1e-4)
