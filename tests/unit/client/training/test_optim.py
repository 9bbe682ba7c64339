"""Optimizers that torch doesn't have, against their papers."""

from typing import Any

import numpy as np
import pytest
import torch

from paramfleet.tables.rules import OptimizerOptionError, server_rule
from paramfleet.training import optim

ROWS, DIM, STEPS, RATE = 12, 5, 60, 0.2

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each step's rows, and their gradients in float64."""
    dice = np.random.default_rng(4)
    return [
        (dice.choice(ROWS, 4, replace=False), dice.standard_normal((4, DIM)))
        for _ in range(STEPS)
    ]


def trained(optimizer: torch.optim.Optimizer, table: torch.nn.Parameter) -> np.ndarray:
    for ids, grads in batches():
        values = torch.from_numpy(grads.astype(np.float32))
        table.grad = torch.sparse_coo_tensor(
            torch.from_numpy(ids)[None], values, table.shape, check_invariants=True
        )
        optimizer.step()
    found: np.ndarray = table.detach().numpy()
    return found


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.8, 0.0), (0.8, 0.3)])
def test_ftrl_is_algorithm_1_of_the_paper(l1: float, l2: float) -> None:
    beta = 0.7
    table = torch.nn.Parameter(torch.zeros(ROWS, DIM))

    found = trained(optim.FTRL([table], lr=RATE, beta=beta, l1=l1, l2=l2), table)

    w, z, n = (np.zeros((ROWS, DIM)) for _ in range(3))
    for ids, g in batches():
        sigma = (np.sqrt(n[ids] + g * g) - np.sqrt(n[ids])) / RATE
        z[ids] += g - sigma * w[ids]
        n[ids] += g * g
        beyond = z[ids] - np.sign(z[ids]) * l1
        new = -beyond / ((beta + np.sqrt(n[ids])) / RATE + l2)
        w[ids] = np.where(np.abs(z[ids]) <= l1, 0.0, new)
    np.testing.assert_allclose(found, w, rtol=1e-4, atol=1e-6)
    assert ((found == 0) == (np.abs(w) < 1e-7)).all()
    assert (found == 0).any() == (l1 > 0)


def test_ftrl_goes_on_from_first_values_and_from_another_rate() -> None:
    table = torch.nn.Parameter(torch.full((3,), 0.5))
    optimizer = optim.FTRL([table], lr=0.1, l1=0.1)

    table.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(table.detach(), torch.full((3,), 0.5))
    optimizer.param_groups[0]["lr"] = 0.001
    optimizer.step()

    torch.testing.assert_close(table.detach(), torch.full((3,), 0.5))


def test_a_row_of_row_wise_adagrad_has_the_sum_of_mean_squares() -> None:
    table = torch.nn.Parameter(torch.zeros(ROWS, DIM))
    optimizer = optim.RowwiseAdagrad([table], lr=RATE, initial_accumulator_value=0.1, eps=1e-6)

    found = trained(optimizer, table)

    w, total = np.zeros((ROWS, DIM)), np.full((ROWS, 1), 0.1)
    for ids, g in batches():
        total[ids] += (g * g).mean(axis=1, keepdims=True)
        w[ids] -= RATE / (np.sqrt(total[ids]) + 1e-6) * g
    np.testing.assert_allclose(found, w, rtol=1e-4, atol=1e-6)
    assert optimizer.state[table]["sum"].shape == (ROWS, 1)


def test_a_closure_gives_the_loss() -> None:
    value = torch.nn.Parameter(torch.ones(2))
    optimizer = optim.FTRL([value], lr=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (value * value).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss.detach()

    assert float(optimizer.step(closure)) == 2.0
    assert float(value.detach().abs().max()) < 1.0


@pytest.mark.parametrize("kind", [optim.FTRL, optim.RowwiseAdagrad])
def test_an_option_that_there_is_not_is_refused(kind: Any) -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "weight_decay": 0.1}]
    with pytest.raises(TypeError, match="has no option 'weight_decay'"):
        kind(groups)


@pytest.mark.parametrize(
    "wrong", [None, "0.1", True, [0.1], torch.tensor([0.1, 0.2]), torch.tensor(True), 10**400]
)
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *((optim.FTRL, option) for option in ("lr", "beta", "l1", "l2")),
        *(
            (optim.RowwiseAdagrad, option)
            for option in ("lr", "initial_accumulator_value", "eps")
        ),
    ],
)
def test_an_option_that_is_no_number_is_refused_by_name(
    kind: Any, option: str, wrong: Any
) -> None:
    parameter = torch.zeros(1)
    rule = f"{kind.__name__} with {option} = .*: must be a finite number"
    with pytest.raises(OptimizerOptionError, match=rule):
        kind([parameter], **{option: wrong})

    optimizer = kind([parameter])
    with pytest.raises(OptimizerOptionError, match=rule):
        optimizer.add_param_group({"params": [torch.zeros(1)], option: wrong})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("kind", "option", "wrong", "rule"),
    [
        (optim.FTRL, "lr", -1, "from 0 to"),
        (optim.FTRL, "l1", -1.0, "from 0 to 1e[+]06"),
        (optim.FTRL, "l2", 2e6, "from 0 to 1e[+]06"),
        (optim.FTRL, "beta", 0.0, "from 1e-06 to 1e[+]06"),
        (optim.FTRL, "l1", float("nan"), "from 0 to 1e[+]06"),
        (optim.FTRL, "lr", torch.tensor(float("inf")), "from 0 to"),
        (optim.RowwiseAdagrad, "lr", -0.1, "from 0 to"),
        (optim.RowwiseAdagrad, "eps", -1e-8, "from 1e-30 to 1e[+]06"),
        (optim.RowwiseAdagrad, "initial_accumulator_value", -1, "from 0 to"),
    ],
)
def test_an_option_out_of_its_range_is_refused_when_the_optimizer_is_made(
    kind: Any, option: str, wrong: Any, rule: str
) -> None:
    parameter = torch.zeros(1)
    with pytest.raises(OptimizerOptionError, match=f"with {option} = .*: must be {rule}"):
        kind([parameter], **{option: wrong})
    with pytest.raises(OptimizerOptionError, match=f"with {option} = .*: must be {rule}"):
        kind([{"params": [parameter], option: wrong}])


def test_an_option_may_be_a_tensor_of_one_number() -> None:
    numbers: list[Any] = [torch.tensor(0.5), np.float32(0.5), 1]
    for number in numbers:
        parameter = torch.ones(2)
        parameter.grad = torch.ones(2)
        optim.FTRL([parameter], lr=number, l2=number).step()
        assert torch.isfinite(parameter).all()


@pytest.mark.parametrize("sparse", [True, False])
def test_servers_run_them_by_their_constants(*, sparse: bool) -> None:
    parameters = [torch.nn.Parameter(torch.ones(2))]
    made: dict[str, torch.optim.Optimizer] = {
        "ftrl": optim.FTRL(parameters, beta=2.0, l1=0.5, l2=0.25),
        "rowwise_adagrad": optim.RowwiseAdagrad(parameters, eps=0.5),
        "adamw": torch.optim.AdamW(parameters, weight_decay=0.0, eps=0.5),
    }
    rules = {
        name: server_rule(optimizer, optimizer.param_groups[0], sparse=sparse)
        for name, optimizer in made.items()
    }
    assert {name: rule.rule for name, rule in rules.items()} == {name: name for name in made}
    assert rules["ftrl"].constants == {"beta": 2.0, "l1": 0.5, "l2": 0.25}
    assert rules["rowwise_adagrad"].constants["eps"] == rules["adamw"].constants["eps"] == 0.5


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_rows_have_the_weight_decay_of_their_group(kind: Any) -> None:
    optimizer = kind([torch.nn.Parameter(torch.ones(2))], lr=0.1, weight_decay=0.1)
    group = optimizer.param_groups[0]

    for sparse in (False, True):
        assert server_rule(optimizer, group, sparse=sparse).constants["weight_decay"] == 0.1
