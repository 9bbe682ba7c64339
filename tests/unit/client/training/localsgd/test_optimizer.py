"""The optimizer in a group of one: what it demands, and what it hands through."""

from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist

from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.settings import LocalSgdSettings, LocalSgdSettingsError
from paramfleet.training.localsgd.inner_state import StateMissingError
from paramfleet.training.localsgd.optimizer import (
    LocalSgdOptimizer,
    LossMissingError,
    NotFiniteError,
)
from paramfleet.training.localsgd.over_group import localsgd_over_group
from paramfleet.training.localsgd.synchronizer import Pending


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    file = tmp_path_factory.mktemp("group") / "store"
    store = dist.FileStore(str(file), 1)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Told:
    """A synchronizer that has what a test says, and averages nothing else."""

    def __init__(self, *news: torch.Tensor) -> None:
        self.fragments: Sequence[int] = [len(news[0])]
        self.deltas: list[torch.Tensor] = []
        self._news = list(news)

    def exchange(
        self, fragment: int, snapshot_F: torch.Tensor, delta_F: torch.Tensor
    ) -> Pending:
        self.deltas.append(delta_F)
        return self

    def wait(self) -> torch.Tensor:
        return self._news.pop(0)

    def mean(self, value: float) -> float:
        return value


class InPlaceTold(Told):
    """A synchronizer that ends at once: it installs what a test says."""

    is_in_place = True

    def __init__(self, weight: torch.Tensor, *news: torch.Tensor) -> None:
        super().__init__(*news)
        self._weight = weight

    def num_nonfinite(self, fragment: int, snapshot_F: torch.Tensor) -> int:
        return int((~(snapshot_F - self._weight).isfinite()).sum())

    def exchange_in_place(self, fragment: int, snapshot_F: torch.Tensor) -> None:
        self.deltas.append((snapshot_F - self._weight).detach())
        snapshot_F.copy_(self._news.pop(0))
        with torch.no_grad():
            self._weight.copy_(snapshot_F)


def one_value(
    **settings: object,
) -> tuple[torch.nn.Parameter, torch.optim.SGD, LocalSgdSettings]:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    inner = torch.optim.SGD([weight], 1.0)
    return weight, inner, LocalSgdSettings(**{"begin_step": 0, **settings})  # type: ignore[arg-type]


def step(optimizer: LocalSgdOptimizer, weight: torch.Tensor, gradient: float) -> float:
    weight.grad = torch.tensor([gradient])
    optimizer.step()
    return weight.item()


@pytest.mark.parametrize(("mixing", "expected"), [(None, 4.5), (0.25, 3.6875)])
def test_progress_made_meanwhile_is_kept_or_mixed(
    mixing: float | None, expected: float
) -> None:
    weight, inner, settings = one_value(k_steps=3, overlap_steps=1, mixing=mixing)
    synchronizer = Told(torch.tensor([5.0]), torch.tensor([9.0]))
    optimizer = LocalSgdOptimizer(inner, settings, synchronizer, ledger=Ledger())

    before = [step(optimizer, weight, 0.25) for _ in range(3)]  # 1 -> 0.25: delta 0.75
    after = step(optimizer, weight, 0.5)  # -0.25; 5 + (-0.25 - 0.25) or 5 * .75 - .25 * .25

    assert before[-1] == 0.25
    assert after == expected
    assert [float(delta) for delta in synchronizer.deltas] == [0.75]
    optimizer.synchronize()
    assert float(synchronizer.deltas[1]) == pytest.approx(5.0 - after)
    assert weight.item() == 9.0


@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_what_was_exchanged_in_place_is_there_at_once(overlap_steps: int) -> None:
    weight, inner, settings = one_value(k_steps=2, overlap_steps=overlap_steps)
    synchronizer = InPlaceTold(weight, torch.tensor([5.0]), torch.tensor([9.0]))
    optimizer = LocalSgdOptimizer(inner, settings, synchronizer, ledger=Ledger())

    met = [step(optimizer, weight, 0.25) for _ in range(2)]  # 1 -> 0.5: delta 0.5
    on = step(optimizer, weight, 0.5)
    optimizer.land()
    optimizer.synchronize()

    assert [*met, on] == [0.75, 5.0, 4.5]
    assert [float(delta) for delta in synchronizer.deltas] == [0.5, 0.5]
    assert weight.item() == 9.0


def test_what_is_not_finite_is_not_exchanged_in_place() -> None:
    weight, inner, settings = one_value(k_steps=1)
    synchronizer = InPlaceTold(weight, torch.tensor([5.0]))
    optimizer = LocalSgdOptimizer(inner, settings, synchronizer, ledger=Ledger())

    with pytest.raises(NotFiniteError, match="fragment 0: 1 values"):
        step(optimizer, weight, float("nan"))

    assert synchronizer.deltas == []


def test_a_synchronizer_that_averages_nothing_else_refuses_to() -> None:
    _, inner, settings = one_value(optimizer_state="average")
    synchronizer = Told(torch.zeros(1))

    with pytest.raises(LocalSgdSettingsError, match="Told has nowhere to average"):
        LocalSgdOptimizer(inner, settings, synchronizer, ledger=Ledger())
    with pytest.raises(LocalSgdSettingsError, match="buffers = 1"):
        LocalSgdOptimizer(
            inner, LocalSgdSettings(), synchronizer, ledger=Ledger(),
            buffers=[torch.zeros(2), torch.zeros(1, dtype=torch.int64)],
        )  # fmt: skip


def test_what_is_not_finite_is_told_to_nobody(group: None) -> None:
    weight, inner, settings = one_value()
    optimizer = localsgd_over_group(inner, settings)

    with pytest.raises(NotFiniteError, match="after step 1") as raised:
        step(optimizer, weight, float("nan"))

    assert raised.value.count == 1


def test_an_adaptive_period_asks_for_the_loss_and_follows_it(group: None) -> None:
    weight, inner, settings = one_value(interval="paper", k_steps=4, begin_step=1)
    optimizer = localsgd_over_group(inner, settings)
    weight.grad = torch.zeros(1)

    with pytest.raises(LossMissingError):
        optimizer.step()
    for loss in (4.0, 2.0, 1.0, 1.0, 0.0, 2.0):  # the mean of the second to fifth is 1
        optimizer.step(loss=torch.tensor(loss))
    assert optimizer.step(lambda: 1.0) == 1.0

    assert optimizer.ledger.intervals == [(0, 4), (5, 2), (7, 3)]  # ceil(4 * sqrt(1.5 / 4))
    assert optimizer.ledger.as_json()["syncs"] == 3


def test_a_learning_rate_schedule_and_minimize_work_on_it(group: None) -> None:
    weight, inner, settings = one_value(k_steps=2)
    optimizer = localsgd_over_group(inner, settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    for _ in range(3):
        optimizer.minimize((weight * 0.5).sum())
        schedule.step()

    assert weight.item() == pytest.approx(1 - 0.5 - 0.25 - 0.125)
    assert "k_steps=2" in repr(optimizer)


def test_parameters_come_before_the_optimizer(group: None) -> None:
    _, inner, settings = one_value()
    optimizer = localsgd_over_group(inner, settings)

    with pytest.raises(LocalSgdSettingsError, match="before it is wrapped"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


def test_state_that_only_some_parameters_have_is_not_averaged(group: None) -> None:
    model = torch.nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = localsgd_over_group(inner, LocalSgdSettings(optimizer_state="average"))
    model.weight.grad = torch.zeros(2, 3)

    with pytest.raises(StateMissingError, match=r"\[2\]"):
        optimizer.step()


def test_reset_lets_the_inner_optimizer_begin_anew(group: None) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    inner = torch.optim.AdamW([weight], 0.1)
    settings = LocalSgdSettings(k_steps=2, begin_step=0, optimizer_state="reset")
    optimizer = localsgd_over_group(inner, settings)

    step(optimizer, weight, 1.0)
    assert weight in inner.state
    step(optimizer, weight, 1.0)

    assert weight not in inner.state
