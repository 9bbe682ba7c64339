"""The moving average of a model equals torch's over all rows and steps."""

import pytest
import torch
from torch.optim import swa_utils

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.nn.average import Average, AverageError
from paramfleet.session.session import Session

N, D, DECAY = 9, 3, 0.8


class Model(torch.nn.Module):
    def __init__(self, embedding: torch.nn.Module) -> None:
        super().__init__()
        self.e = embedding
        self.out = torch.nn.Linear(D, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.e(ids)).square().mean()
        return found


class Trained:
    """A model of torch with its average, and one with a table."""

    def __init__(self, rows: int = N) -> None:
        torch.manual_seed(3)
        self.torch = Model(torch.nn.Embedding(N, D))
        session = Session()
        session.init(RoleMaker(distributed=False))
        self.model = session.distributed_model(Model(fleet.nn.Embedding(rows, D, name="e")))
        self.model.load_state_dict(self.torch.state_dict())
        self._reference = torch.optim.SGD(self.torch.parameters(), lr=0.5)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self._optimizer = session.distributed_optimizer(optimizer)
        averaging = swa_utils.get_ema_multi_avg_fn(DECAY)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.expected = swa_utils.AveragedModel(self.torch, multi_avg_fn=averaging)
        self.expected.update_parameters(self.torch)  # torch's first update copies
        self.average = Average(self.model, DECAY)
        self._dice = torch.Generator().manual_seed(1)

    def step(self) -> None:
        ids = torch.randint(0, N, (2, 2), generator=self._dice)
        self._reference.zero_grad()
        self.torch(ids).backward()
        self._reference.step()
        self.expected.update_parameters(self.torch)
        self._optimizer.minimize(self.model(ids))
        self.average.update()


@pytest.mark.parametrize("rows", [N, 0])
def test_rows_that_are_used_now_and_then_have_torchs_average(rows: int) -> None:
    trained = Trained(rows)

    for _ in range(12):
        trained.step()

    expected = trained.expected.module.state_dict()
    averaged = trained.average.rows("e", torch.arange(N))
    torch.testing.assert_close(averaged, expected["e.weight"], rtol=0, atol=1e-6)
    frozen = trained.average.model()
    torch.testing.assert_close(
        frozen(torch.arange(N)), trained.expected.module(torch.arange(N))
    )


def test_an_average_goes_on_from_its_state() -> None:
    trained = Trained()
    for _ in range(4):
        trained.step()

    state, trained.average = trained.average.state_dict(), Average(trained.model, DECAY)
    trained.average.load_state_dict(state)
    for _ in range(4):
        trained.step()

    expected = trained.expected.module.state_dict()
    averaged = trained.average.rows("e", torch.arange(N))
    torch.testing.assert_close(averaged, expected["e.weight"], rtol=0, atol=1e-6)


def test_an_average_of_another_model_is_refused() -> None:
    average = Average(Model(fleet.nn.Embedding(N, D, name="e")), DECAY)
    other = Average(torch.nn.Linear(D, 1), DECAY)

    with pytest.raises(AverageError, match=r"'out\.bias'|'bias'"):
        average.load_state_dict(other.state_dict())
    with pytest.raises(AverageError, match="no such table"):
        average.rows("f", torch.arange(2))


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(AverageError, match="must be from 0"):
        fleet.ema(torch.nn.Linear(1, 1), decay)
