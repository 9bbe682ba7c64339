"""The loss's scale follows Fleet's rules, and a step with infinities changes nothing."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from paramfleet.config.errors import CallOrderError
from paramfleet.config.features import FEATURES
from paramfleet.training.collective.features.scaling import LossScale, ScaledOptimizer, in_half

DEFAULTS = {key: known.default for key, known in FEATURES["amp"].items()}


def scale(**keys: Any) -> LossScale:
    return LossScale({**DEFAULTS, "init_loss_scaling": 100.0, **keys})


def after(made: LossScale, steps: str) -> float:
    for step in steps:
        made.note(finite=step == ".")
    return made.value


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("..", 100.0),
        ("...", 200.0),
        ("......", 400.0),
        ("..x...", 200.0),
        ("x", 100.0),
        ("xx", 80.0),
        ("x.x", 100.0),
        ("xxxx", 64.0),
    ],
)
def test_it_grows_after_good_steps_and_shrinks_after_bad_ones(
    steps: str, expected: float
) -> None:
    made = scale(incr_every_n_steps=3, decr_every_n_nan_or_inf=2)

    assert after(made, steps) == pytest.approx(expected)


def test_a_fixed_scale_stays() -> None:
    assert after(scale(use_dynamic_loss_scaling=False, incr_every_n_steps=1), ".x.xx") == 100.0


def test_it_never_falls_below_one() -> None:
    assert after(scale(init_loss_scaling=1.5, decr_every_n_nan_or_inf=1), "xxxx") == 1.0


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def start(**keys: Any) -> tuple[torch.nn.Parameter, ScaledOptimizer]:
    parameter = torch.nn.Parameter(torch.ones(2))
    sgd = torch.optim.SGD([parameter], lr=0.5, momentum=0.9)
    return parameter, ScaledOptimizer(sgd, {**DEFAULTS, **keys}, "cpu")


def test_gradients_are_those_of_the_loss_itself() -> None:
    parameter, optimizer = start()

    backward(optimizer.scaled((parameter * 3).sum()))
    optimizer.step()

    torch.testing.assert_close(parameter.detach(), torch.full((2,), -0.5))


def test_a_step_with_infinities_changes_nothing_but_the_scale() -> None:
    parameter, optimizer = start(decr_every_n_nan_or_inf=1)

    backward(optimizer.scaled((parameter * float("inf")).sum()))
    optimizer.step()

    assert parameter.tolist() == [1.0, 1.0]
    assert optimizer.scale.value == pytest.approx(32768 * 0.8)
    optimizer.zero_grad()
    backward(optimizer.scaled((parameter * 3).sum()))
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((2,), -0.5))


def test_gradients_of_an_unscaled_loss_are_refused() -> None:
    parameter, optimizer = start()
    backward(parameter.sum())

    with pytest.raises(CallOrderError, match="minimize"):
        optimizer.step()


def test_what_was_saved_goes_on() -> None:
    parameter, optimizer = start(incr_every_n_steps=2)
    other_parameter, other = start(incr_every_n_steps=2)
    backward(optimizer.scaled(parameter.sum()))
    optimizer.step()

    other.load_state_dict(deepcopy(optimizer.state_dict()))
    with torch.no_grad():
        other_parameter.copy_(parameter)
    for made, p in ((optimizer, parameter), (other, other_parameter)):
        made.zero_grad()
        backward(made.scaled(p.square().sum()))
        made.step()

    assert torch.equal(parameter, other_parameter)
    assert optimizer.scale.value == other.scale.value == 2 * 32768


def test_what_the_model_returns_is_float32_again() -> None:
    layer = torch.nn.Linear(4, 4)

    def forward(inputs: torch.Tensor) -> dict[str, Any]:
        found = layer(inputs)
        return {"half": found, "list": [found], "tuple": (found, "name"), "ids": inputs.long()}

    inner = forward(torch.ones(1, 4))
    found = in_half(forward, device="cpu", dtype=torch.bfloat16)(torch.ones(1, 4))

    assert found["half"].dtype == found["list"][0].dtype == torch.float32
    assert found["tuple"][1] == "name"
    assert found["ids"].dtype == torch.int64
    assert not torch.equal(found["half"], inner["half"])  # it was computed in 16 bits
