"""Optimizers that torch doesn't have, against their papers."""

import numpy as np
import pytest
import torch

from paramfleet import optim
from paramfleet.rules import OptimizerNotServedError, server_rule

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
    optimizer = optim.RowwiseAdagrad([value], lr=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (value * value).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss.detach()

    assert float(optimizer.step(closure)) == 2.0
    assert float(value.detach().abs().max()) < 1.0


def test_an_option_that_there_is_not_is_refused() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "weight_decay": 0.1}]
    with pytest.raises(TypeError, match="has no option 'weight_decay'"):
        optim.RowwiseAdagrad(groups)


@pytest.mark.parametrize("sparse", [True, False])
def test_servers_run_them_by_their_constants(*, sparse: bool) -> None:
    parameters = [torch.nn.Parameter(torch.ones(2))]
    made: dict[str, torch.optim.Optimizer] = {
        "rowwise_adagrad": optim.RowwiseAdagrad(parameters, eps=0.5),
        "adamw": torch.optim.AdamW(parameters, weight_decay=0.0, eps=0.5),
    }
    rules = {
        name: server_rule(optimizer, optimizer.param_groups[0], sparse=sparse)
        for name, optimizer in made.items()
    }
    assert {name: rule.rule for name, rule in rules.items()} == {name: name for name in made}
    assert rules["rowwise_adagrad"].constants["eps"] == rules["adamw"].constants["eps"] == 0.5


def test_rows_have_no_weight_decay_of_adamw() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], weight_decay=0.1)
    group = optimizer.param_groups[0]

    assert server_rule(optimizer, group, sparse=False).constants["weight_decay"] == 0.1
    with pytest.raises(OptimizerNotServedError, match=r"weight_decay=0\.1 on rows"):
        server_rule(optimizer, group, sparse=True)
