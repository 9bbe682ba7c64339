"""Which steps of a worker wait for the servers, and from where they are counted."""

import torch

from paramfleet.config.strategy import TrainingMode
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.modes.fresh import FreshSteps
from paramfleet.training.optimizer import DistributedOptimizer


def counted(fresh: FreshSteps, steps: int) -> list[bool]:
    found = []
    for _ in range(steps):
        found.append(fresh.is_next)
        fresh.note_step()
    return found


def test_the_first_steps_are_fresh() -> None:
    assert counted(FreshSteps(2), 4) == [True, True, False, False]
    assert counted(FreshSteps(0), 1) == [False]


def test_steps_of_before_count() -> None:
    fresh = FreshSteps(3)
    fresh.go_on_from(2)

    assert counted(fresh, 3) == [True, False, False]


class _Mode:
    """What an optimizer steps through, as far as its steps are counted."""

    def __init__(self) -> None:
        self.fresh = FreshSteps(100)


def test_an_optimizer_that_goes_on_from_a_checkpoint_says_how_old_its_model_is() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    inner = torch.optim.SGD([parameter], lr=0.1)
    optimizer = DistributedOptimizer(
        inner, TrainingMode(name="local"), lambda: 1, StepTimes(lambda: 0.0)
    )
    optimizer.go_on_from(7)
    assert optimizer.num_steps == 7, "there is nobody to wait for"

    mode = _Mode()
    optimizer._mode = mode  # type: ignore[assignment]
    optimizer.go_on_from(100)

    assert optimizer.num_steps == 100
    assert not mode.fresh.is_next
