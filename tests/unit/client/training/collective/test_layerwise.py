"""LARS and LAMB step as the papers' formulas say."""

import numpy as np
import pytest
import torch

from paramfleet.config.strategy import DistributedStrategy
from paramfleet.training.collective.errors import CollectiveSetupError
from paramfleet.training.collective.features.lamb import Lamb
from paramfleet.training.collective.features.lars import Lars
from paramfleet.training.collective.steppers import stepper_of

STEPS = 5


def start(seed: int = 1) -> tuple[torch.nn.Linear, list[list[torch.Tensor]]]:
    """Return a model in float64, and the gradients of its weight and bias, step by step."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2).double()
    gradients = [[torch.randn_like(p) for p in model.parameters()] for _ in range(STEPS)]
    return model, gradients


def run(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    gradients: list[list[torch.Tensor]],
) -> list[np.ndarray]:
    for step in gradients:
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach().numpy() for parameter in model.parameters()]


def strategy(flag: str, **keys: object) -> DistributedStrategy:
    made = DistributedStrategy()
    setattr(made, flag, True)
    setattr(made, f"{flag}_configs", keys)
    return made


def test_lars_is_algorithm_1_of_the_paper() -> None:
    model, gradients = start()
    weight, bias = (p.detach().numpy().copy() for p in model.parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    keys = {
        "lars_coeff": 0.02,
        "lars_weight_decay": 0.01,
        "exclude_from_weight_decay": ["bias"],
    }
    mode = strategy("lars", **keys).resolve_collective()

    found = run(stepper_of(sgd, mode, model), model, gradients)

    velocity_w, velocity_b = np.zeros_like(weight), np.zeros_like(bias)
    for gradient_w, gradient_b in ((w.numpy(), b.numpy()) for w, b in gradients):
        norm = np.linalg.norm
        local = 0.02 * norm(weight) / (norm(gradient_w) + 0.01 * norm(weight))
        velocity_w = 0.9 * velocity_w + 0.3 * local * (gradient_w + 0.01 * weight)
        velocity_b = 0.9 * velocity_b + 0.3 * gradient_b
        weight, bias = weight - velocity_w, bias - velocity_b
    np.testing.assert_allclose(found[0], weight, rtol=1e-12)
    np.testing.assert_allclose(found[1], bias, rtol=1e-12)


def test_lamb_is_algorithm_2_of_the_paper() -> None:
    model, gradients = start()
    weight, bias = (p.detach().numpy().copy() for p in model.parameters())
    adam = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    keys = {"lamb_weight_decay": 0.02, "exclude_from_weight_decay": ["bias"]}
    mode = strategy("lamb", **keys).resolve_collective()

    found = run(stepper_of(adam, mode, model), model, gradients)

    expected = []
    for value, number, decay in ((weight, 0, 0.02), (bias, 1, 0.0)):
        mean, square, moved = np.zeros_like(value), np.zeros_like(value), value
        for step, each in enumerate(gradients, start=1):
            gradient = each[number].numpy()
            mean = 0.8 * mean + 0.2 * gradient
            square = 0.95 * square + 0.05 * gradient**2
            ratio = (mean / (1 - 0.8**step)) / (np.sqrt(square / (1 - 0.95**step)) + 1e-6)
            update = ratio + decay * moved
            trust = np.linalg.norm(moved) / np.linalg.norm(update)
            moved = moved - 0.1 * trust * update
        expected.append(moved)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)


@pytest.mark.parametrize("kind", ["lars", "lamb"])
def test_a_layer_of_zeros_takes_the_plain_step(kind: str) -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.ones(4)
    optimizer: torch.optim.Optimizer
    if kind == "lars":
        groups = torch.optim.SGD([parameter], lr=0.5).param_groups
        optimizer = Lars(groups, coeff=0.1, weight_decay=0.0, epsilon=0.0, without_decay=[])
    else:
        groups = torch.optim.Adam([parameter], lr=0.5, eps=0.0).param_groups
        optimizer = Lamb(groups, weight_decay=0.0, without_decay=[])

    optimizer.step()

    torch.testing.assert_close(parameter.detach(), torch.full((4,), -0.5))


def test_a_scheduler_of_the_users_optimizer_is_obeyed() -> None:
    model, gradients = start()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    stepper = stepper_of(sgd, strategy("lars").resolve_collective(), model)
    sgd.param_groups[0]["lr"] = 0.0
    before = [p.detach().numpy().copy() for p in model.parameters()]

    found = run(stepper, model, gradients)

    np.testing.assert_array_equal(found[0], before[0])


@pytest.mark.parametrize(
    ("flag", "kind", "options", "named"),
    [
        ("lars", "Adam", {}, ["lars", "Adam"]),
        ("lars", "SGD", {"nesterov": True, "momentum": 0.9}, ["lars", "nesterov"]),
        ("lars", "SGD", {"weight_decay": 0.1}, ["lars", "weight_decay"]),
        ("lamb", "SGD", {}, ["lamb", "SGD"]),
        ("lamb", "Adam", {"amsgrad": True}, ["lamb", "amsgrad"]),
        ("lamb", "AdamW", {"weight_decay": 0.1}, ["lamb", "weight_decay"]),
        ("dgc", "AdamW", {}, ["dgc", "AdamW"]),
        ("dgc", "SGD", {}, ["dgc", "momentum"]),
        ("dgc", "SGD", {"momentum": 0.9, "dampening": 0.1}, ["dgc", "dampening"]),
    ],
)
def test_another_optimizer_is_an_error_that_names_both(
    flag: str, kind: str, options: dict[str, object], named: list[str]
) -> None:
    model, _ = start()
    inner = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)

    with pytest.raises(CollectiveSetupError) as caught:
        stepper_of(inner, strategy(flag).resolve_collective(), model)

    assert all(each in str(caught.value) for each in named)


def test_a_used_optimizer_has_state_for_which_there_is_no_place() -> None:
    model, gradients = start()
    adam = torch.optim.Adam(model.parameters())
    run(adam, model, gradients)

    with pytest.raises(CollectiveSetupError, match="used Adam"):
        stepper_of(adam, strategy("lamb").resolve_collective(), model)
