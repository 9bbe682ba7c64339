"""The optimizers against torch's own, over many steps."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paramfleet.training import optim
from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

START = InitializerSpec(kind="normal", std=0.5)
STEPS = 200

pytestmark = pytest.mark.slow

Case = tuple[str, dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]

DENSE: dict[str, Case] = {
    "sgd": ("sgd", {}, torch.optim.SGD, {}),
    "sgd, decayed": ("sgd", {"weight_decay": 0.01}, torch.optim.SGD, {"weight_decay": 0.01}),
    "momentum": ("momentum", {}, torch.optim.SGD, {"momentum": 0.9}),
    "momentum, dampened and decayed": (
        "momentum",
        {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.01},
        torch.optim.SGD,
        {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.01},
    ),
    "nesterov": (
        "momentum",
        {"nesterov": True},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True},
    ),
    "adagrad": ("adagrad", {"eps": 1e-10}, torch.optim.Adagrad, {}),
    "adagrad, every setting": (
        "adagrad",
        {
            "eps": 1e-6,
            "lr_decay": 0.1,
            "initial_accumulator_value": 0.5,
            "weight_decay": 0.01,
        },
        torch.optim.Adagrad,
        {
            "eps": 1e-6,
            "lr_decay": 0.1,
            "initial_accumulator_value": 0.5,
            "weight_decay": 0.01,
        },
    ),
    "adam": ("adam", {}, torch.optim.Adam, {}),
    "adam, every setting": (
        "adam",
        {"beta1": 0.7, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.01},
        torch.optim.Adam,
        {"betas": (0.7, 0.95), "eps": 1e-4, "weight_decay": 0.01},
    ),
    "adamw": ("adamw", {"weight_decay": 0.01}, torch.optim.AdamW, {}),
    "adamw, every setting": (
        "adamw",
        {"beta1": 0.7, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.2},
        torch.optim.AdamW,
        {"betas": (0.7, 0.95), "eps": 1e-4, "weight_decay": 0.2},
    ),
    "rowwise adagrad": (
        "rowwise_adagrad",
        {"eps": 1e-6, "initial_accumulator_value": 0.5},
        optim.RowwiseAdagrad,
        {"eps": 1e-6, "initial_accumulator_value": 0.5},
    ),
    "ftrl": ("ftrl", {}, optim.FTRL, {}),
    "ftrl, every setting": (
        "ftrl",
        {"beta": 0.3, "l1": 2.0, "l2": 0.1},
        optim.FTRL,
        {"beta": 0.3, "l1": 2.0, "l2": 0.1},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def torch_for_small_tensors() -> Iterator[None]:
    """Use one thread, and check sparse tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    checks: Any = torch.sparse.check_sparse_tensor_invariants
    with checks(enable=True):  # else torch warns
        yield
    torch.set_num_threads(threads)


def assert_close(
    ours: NDArray[np.float32], theirs: torch.Tensor, tolerance: float = 1e-6
) -> None:
    reference = theirs.detach().numpy()
    assert np.abs(ours - reference).max() <= tolerance * np.abs(reference).max()


@pytest.mark.parametrize("case", DENSE)
def test_a_dense_range_steps_as_torch_does(case: str) -> None:
    rule, settings, optimizer_class, torch_settings = DENSE[case]
    optimizer = OptimizerSpec(rule=rule, **settings)
    size = 203
    spec = TableSpec(name="w", kind="dense", size=size, initializer=START, optimizer=optimizer)
    ours = DenseRange(spec, 0, size)
    theirs = torch.nn.Parameter(torch.from_numpy(ours.values.copy()))
    torch_optimizer = optimizer_class([theirs], lr=0.05, **torch_settings)  # type: ignore[call-arg]
    rng = np.random.default_rng(1)

    for step in range(1, STEPS + 1):
        grads = rng.standard_normal(size, np.float32)
        ours.push(grads, lr=0.05, step=step)
        theirs.grad = torch.from_numpy(grads)
        torch_optimizer.step()

    # FTRL divides a value by what it was multiplied by: two more roundings in each step.
    assert_close(ours.values, theirs, 3e-6 if rule == "ftrl" else 1e-6)


LAZY: dict[str, Case] = {
    "sgd": ("sgd", {}, torch.optim.SGD, {}),
    "adagrad": (
        "adagrad",
        {"eps": 1e-10, "lr_decay": 0.1, "initial_accumulator_value": 0.1},
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "initial_accumulator_value": 0.1},
    ),
    "adam": ("adam", {}, torch.optim.SparseAdam, {}),
    "adam, every setting": (
        "adam",
        {"beta1": 0.7, "beta2": 0.95, "eps": 1e-4},
        torch.optim.SparseAdam,
        {"betas": (0.7, 0.95), "eps": 1e-4},
    ),
    "adamw": ("adamw", {}, torch.optim.SparseAdam, {}),
    "rowwise adagrad": ("rowwise_adagrad", {}, optim.RowwiseAdagrad, {}),
    "rowwise adagrad, every setting": (
        "rowwise_adagrad",
        {"eps": 1e-4, "initial_accumulator_value": 0.1},
        optim.RowwiseAdagrad,
        {"eps": 1e-4, "initial_accumulator_value": 0.1},
    ),
    "ftrl": (
        "ftrl",
        {"beta": 0.3, "l1": 2.0, "l2": 0.1},
        optim.FTRL,
        {"beta": 0.3, "l1": 2.0, "l2": 0.1},
    ),
}


@pytest.mark.parametrize("dim", [1, 12])
@pytest.mark.parametrize("case", LAZY)
def test_a_sparse_shard_steps_as_torch_does_with_sparse_gradients(case: str, dim: int) -> None:
    rule, settings, optimizer_class, torch_settings = LAZY[case]
    optimizer = OptimizerSpec(rule=rule, **settings)
    num = 60
    spec = TableSpec(name="e", kind="sparse", dim=dim, initializer=START, optimizer=optimizer)
    shard = SparseShard(spec, max_rows=num)
    rows = np.arange(num)
    theirs = torch.nn.Parameter(torch.from_numpy(initial_rows(spec, rows)))
    torch_optimizer = optimizer_class([theirs], lr=0.05, **torch_settings)  # type: ignore[call-arg]
    rng = np.random.default_rng(2)

    for step in range(1, STEPS + 1):
        ids = rng.integers(0, num, 25)
        grads = rng.standard_normal((25, dim), np.float32)
        shard.push(ids, grads, lr=0.05, step=step)
        theirs.grad = torch.sparse_coo_tensor(
            torch.from_numpy(ids)[None],
            torch.from_numpy(grads),
            (num, dim),
            check_invariants=True,
        )
        torch_optimizer.step()

    ours = np.empty((num, dim), np.float32)
    shard.pull(rows, ours, create=False)
    assert_close(ours, theirs, 2e-6)


DECAYED: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {"eps": 1e-8}),
}


@pytest.mark.parametrize("rule", DECAYED)
def test_rows_decay_in_the_steps_in_which_they_have_a_gradient(rule: str) -> None:
    optimizer_class, settings = DECAYED[rule]
    optimizer = OptimizerSpec(rule=rule, weight_decay=0.3)
    spec = TableSpec(name="e", kind="sparse", dim=5, initializer=START, optimizer=optimizer)
    shard = SparseShard(spec, max_rows=8)
    rows = np.arange(8)
    theirs = [torch.nn.Parameter(torch.from_numpy(row)) for row in initial_rows(spec, rows)]
    kinds = {"lr": 0.05, "weight_decay": 0.3, **settings}
    torch_optimizers = [optimizer_class([row], **kinds) for row in theirs]
    rng = np.random.default_rng(3)

    for step in range(1, STEPS + 1):
        ids = np.unique(rng.integers(0, 8, 5))
        grads = rng.standard_normal((len(ids), 5), np.float32)
        shard.push(ids, grads, lr=0.05, step=step)
        for number, grad in zip(ids, grads, strict=True):
            theirs[number].grad = torch.from_numpy(grad)
            torch_optimizers[number].step()

    ours = np.empty((8, 5), np.float32)
    shard.pull(rows, ours, create=False)
    assert_close(ours, torch.stack(list(theirs)), 2e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sparse_momentum_steps_each_row_as_torch_steps_it_alone(nesterov: bool) -> None:
    optimizer = OptimizerSpec(rule="momentum", momentum=0.9, nesterov=nesterov)
    spec = TableSpec(name="e", kind="sparse", dim=5, initializer=START, optimizer=optimizer)
    shard = SparseShard(spec, max_rows=8)
    rows = np.arange(8)
    theirs = [torch.nn.Parameter(torch.from_numpy(row)) for row in initial_rows(spec, rows)]
    torch_optimizers = [
        torch.optim.SGD([row], lr=0.01, momentum=0.9, nesterov=nesterov) for row in theirs
    ]
    rng = np.random.default_rng(3)

    for step in range(1, STEPS + 1):
        ids = rng.choice(8, 3, replace=False)
        grads = rng.standard_normal((3, 5), np.float32)
        shard.push(ids, grads, lr=0.01, step=step)
        for key, grad in zip(ids, grads, strict=True):
            theirs[key].grad = torch.from_numpy(grad)
            torch_optimizers[key].step()

    ours = np.empty((8, 5), np.float32)
    shard.pull(rows, ours, create=False)
    assert_close(ours, torch.stack(list(theirs)))


def test_the_learning_rate_is_that_of_the_push() -> None:
    spec = TableSpec(name="w", kind="dense", size=2)
    part = DenseRange(spec, 0, 2)

    for step, lr in enumerate((1.0, 0.5, 0.25), start=1):
        part.push(np.array([1, -1], np.float32), lr=lr, step=step)

    assert part.values.tolist() == [-1.75, 1.75]
