"""What the first steps of a worker wait for, in logical jobs of the product's own modes."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import torch

import paramfleet as fleet
from logical import LogicalJob, LogicalWorker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.training.modes.asynchronous.mode import AsyncMode
from paramfleet.training.modes.geo.mode import GeoMode

FRESH = 3
IDS = torch.tensor([1, 2, 5])


class Small(torch.nn.Module):
    """Rows of which each begins as 0, and one dense layer that begins as 1."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = fleet.nn.Embedding(0, 2, name="rows", initializer=fleet.nn.constant(0.0))
        self.layer = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(self.rows(ids) + 1.0)
        return found


@contextmanager
def job(num: int, **keys: Any) -> Iterator[tuple[LogicalJob, list[LogicalWorker]]]:
    workers = []
    for _ in range(num):
        model = Small()
        workers.append(LogicalWorker(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    strategy = DistributedStrategy()
    strategy.a_sync_configs = {"fresh_steps": FRESH, **keys}
    logical = LogicalJob(workers, strategy.resolve())
    with closing(logical):
        yield logical, workers


def take_step(worker: LogicalWorker) -> None:
    worker.model(IDS).sum().backward()
    worker.step(examples=len(IDS))


def held(worker: LogicalWorker) -> list[float]:
    """Return what a worker computes with: its dense values, and a row."""
    model = worker.model.eval()
    assert isinstance(model, Small)
    with torch.no_grad():
        values = [model.layer.weight, model.rows(IDS[:1])]
    model.train()
    return torch.cat([each.flatten() for each in values]).tolist()


def took_in(worker: LogicalWorker) -> bool:
    """Return whether the servers had more for a worker than it computed with."""
    before = held(worker)
    worker.mode.flush()
    if isinstance(worker.mode, AsyncMode):
        worker.mode.refresh()
    return held(worker) != before


MODES = pytest.mark.parametrize("keys", [{}, {"k_steps": 20}], ids=["async", "geo"])


@pytest.mark.parametrize(
    ("keys", "later"),
    [({}, [1, 2]), ({"thread_pool_size": 1}, [1, 1]), ({"k_steps": 20}, [1, 1])],
    ids=["async", "async, one push at a time", "geo"],
)
def test_nothing_is_on_its_way_after_a_first_step_and_later_steps_wait_for_nobody(
    keys: dict[str, Any], later: list[int]
) -> None:
    travelling = []
    with job(2, **keys) as (logical, (first, _)):
        for _ in range(FRESH + 2):
            take_step(first)
            travelling.append(len(logical._road._gates))

    assert travelling == [0] * FRESH + later


@MODES
@pytest.mark.parametrize("fresh_steps", [0, FRESH])
def test_a_worker_computes_with_what_others_have_done_before_its_first_steps_end(
    keys: dict[str, Any], fresh_steps: int
) -> None:
    with job(2, **{**keys, "fresh_steps": fresh_steps}) as (_, (first, second)):
        take_step(first)
        take_step(second)

        assert took_in(second) == (fresh_steps == 0)
        assert took_in(first), "the second one's step was later"


@MODES
def test_a_worker_of_an_old_model_does_not_wait(keys: dict[str, Any]) -> None:
    with job(2, **keys) as (logical, (first, _)):
        assert isinstance(first.mode, AsyncMode | GeoMode)
        first.mode.fresh.go_on_from(FRESH)
        take_step(first)

        assert len(logical._road._gates) == 1
