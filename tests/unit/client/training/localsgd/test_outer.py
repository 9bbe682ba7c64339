"""Outer steps against vectors computed by hand, and against torch."""

import pytest
import torch

from paramfleet.training.localsgd.core.outer import OuterOptimizer
from paramfleet.training.localsgd.core.settings import LocalSgdSettings

SNAPSHOT = torch.tensor([1.0, 2.0])
LOCALS = [torch.tensor([0.5, 2.0]), torch.tensor([1.1, 1.0])]
MEAN_DELTA = torch.tensor([0.2, 0.5])  # of (0.5, 0) and (-0.1, 1)


def outer(name: str, **more: float) -> OuterOptimizer:
    settings = LocalSgdSettings(outer_optimizer=name, **more)  # type: ignore[arg-type]
    return OuterOptimizer(settings, 2)


def two_steps(optimizer: OuterOptimizer, fragment: int = 0) -> torch.Tensor:
    first = optimizer.step(fragment, SNAPSHOT, MEAN_DELTA)
    return optimizer.step(fragment, first, MEAN_DELTA)


def test_none_averages_the_workers_values() -> None:
    deltas = torch.stack([SNAPSHOT - local for local in LOCALS])

    found = outer("none").step(0, SNAPSHOT, deltas.mean(dim=0))

    torch.testing.assert_close(found, torch.tensor([0.8, 1.5]))


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        # 1 - .5 * .2 twice
        ("sgd", {"outer_lr": 0.5}, [0.8, 1.5]),
        # velocity .2, .38: 1 - .5 * .2 - .5 * .38
        ("sgd", {"outer_lr": 0.5, "outer_momentum": 0.9}, [0.71, 1.275]),
        # .2 + .9 * .2 = .38, .2 + .9 * .38 = .542: 1 - .7 * .922
        ("nesterov", {"outer_lr": 0.7, "outer_momentum": 0.9}, [0.3546, 0.3865]),
    ],
)
def test_two_steps_are_those_computed_by_hand(
    name: str, more: dict[str, float], expected: list[float]
) -> None:
    torch.testing.assert_close(two_steps(outer(name, **more)), torch.tensor(expected))


@pytest.mark.parametrize("name", ["sgd", "nesterov"])
def test_steps_are_those_of_torch(name: str) -> None:
    ours = outer(name, outer_lr=0.7, outer_momentum=0.9)
    theirs = torch.nn.Parameter(SNAPSHOT.clone())
    peer = torch.optim.SGD([theirs], 0.7, momentum=0.9, nesterov=name == "nesterov")
    mine = SNAPSHOT
    for step in range(5):
        delta = torch.tensor([0.1 * step, 0.3])
        theirs.grad = delta.clone()
        peer.step()
        mine = ours.step(0, mine, delta)

    torch.testing.assert_close(mine, theirs.detach())


def test_the_arguments_stay_as_they_are() -> None:
    two_steps(outer("nesterov", outer_momentum=0.9))

    assert SNAPSHOT.tolist() == [1.0, 2.0]
    assert MEAN_DELTA.tolist() == pytest.approx([0.2, 0.5])


def test_fragments_have_momenta_of_their_own_and_keep_them() -> None:
    one, other = (outer("nesterov", outer_momentum=0.9) for _ in range(2))
    two_steps(one, fragment=1)

    other.load_state_dict(one.state_dict())

    for fragment in (0, 1):
        found = [each.step(fragment, SNAPSHOT, MEAN_DELTA) for each in (one, other)]
        assert torch.equal(found[0], found[1])
    assert not torch.equal(one.state_dict()["0"], one.state_dict()["1"])
