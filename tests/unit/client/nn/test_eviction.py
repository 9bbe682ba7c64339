"""Rows go in one process as ``strategy.eviction_configs`` says."""

import datetime as dt
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.api.shrinking import Shrinking
from paramfleet.config.roles import RoleMaker
from paramfleet.config.strategy import StrategyError
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.tables.row_store import RowStore
from paramfleet.training.evicting import looks
from paramfleet_shared.tables.sparse import INDEX_BYTES

NAMED = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop}
"""Two that kernels step by, and one that steps rows itself."""


class Trained:
    """A module of one table, trained in this process."""

    def __init__(self, configs: Any, rule: str = "sgd", **options: Any) -> None:
        self.session = Session()
        self.session.init(RoleMaker(distributed=False))
        self.module = fleet.nn.Embedding(0, 2, name="t", **options)
        model = self.session.distributed_model(self.module)
        strategy = fleet.DistributedStrategy()
        strategy.eviction_configs = configs
        inner = NAMED[rule](model.parameters(), lr=0.5)
        self.optimizer = self.session.distributed_optimizer(inner, strategy)
        self.session.init_worker()
        self.shrinking = Shrinking(self.session)

    def step(self, *ids: int) -> None:
        used = torch.tensor(ids, dtype=torch.int64)
        self.optimizer.minimize(self.module(used).square().sum())

    @property
    def ids(self) -> list[int]:
        store = self.module.table.source
        assert isinstance(store, RowStore)
        return sorted(store.live_ids().tolist())


@pytest.mark.parametrize("rule", NAMED)
def test_rows_go_that_no_step_has_used_for_long(rule: str) -> None:
    trained = Trained({"unseen_steps": 2, "every_steps": 0}, rule)
    for ids in ([1, 2], [2], [2, 3], [3]):
        trained.step(*ids)

    assert trained.ids == [1, 2, 3]
    assert trained.shrinking.shrink(dry_run=True) == {"t": 1}
    assert trained.ids == [1, 2, 3]
    assert trained.shrinking.shrink() == {"t": 1}
    assert trained.ids == [2, 3]


@pytest.mark.parametrize("rule", NAMED)
def test_training_is_the_same_as_long_as_no_row_goes(rule: str) -> None:
    plain, tracked = Trained({}, rule), Trained({"unseen_steps": 99}, rule)
    for each in (plain, tracked):
        for used in ([1, 2], [2, 3], [1, 2]):
            each.step(*used)
    ids = torch.tensor([1, 2, 3, 4])
    assert torch.equal(plain.module(ids), tracked.module(ids))


def test_rows_go_by_themselves_between_steps() -> None:
    trained = Trained({"unseen_steps": 2, "every_steps": 3})
    for number in range(6):
        trained.step(number, number + 1)
    assert trained.ids == [3, 4, 5, 6], "row 3 was seen in step 4: 2 steps are not more than 2"


def test_a_table_has_no_more_rows_than_it_may() -> None:
    trained = Trained({"max_rows": 20, "headroom": 0.5, "every_steps": 100})
    most = 0
    for number in range(40):
        trained.step(2 * number, 2 * number + 1)
        most = max(most, len(trained.ids))
    assert most == 20
    assert trained.ids == list(range(60, 70)), "later ones came while it was full"


def test_a_full_table_is_looked_at_before_its_time() -> None:
    trained = Trained({"max_rows": 20, "headroom": 0.5, "every_steps": 50})
    for number in range(49):
        trained.step(number)
    assert trained.ids == list(range(30, 49)), "it was full after the steps 20, 30 and 40"


@pytest.mark.parametrize(
    ("value", "stay"),
    [("recency", [3, 4]), ("frequency", [1, 4]), (None, [3, 4])],
)
def test_a_full_table_keeps_what_was_used_last_or_most(value: Any, stay: list[int]) -> None:
    configs = {"max_rows": 4, "headroom": 0.5, "every_steps": 0, "value": value}
    trained = Trained(configs)
    for ids in ([1], [1], [1], [2], [3], [4], [4]):
        trained.step(*ids)

    assert trained.shrinking.shrink() == {"t": 2}
    assert trained.ids == stay


def test_many_rows_go_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "MOST_AT_ONCE", 7)
    trained = Trained({"unseen_steps": 1, "every_steps": 0})
    trained.step(*range(40))
    for _ in range(2):
        trained.step(1000)

    assert trained.shrinking.shrink(dry_run=True) == {"t": 40}
    assert trained.shrinking.shrink() == {"t": 40}
    assert trained.ids == [1000]
    assert trained.shrinking.shrink() == {"t": 0}


def test_the_least_valued_rows_of_an_accessor_go_first() -> None:
    accessor = fleet.nn.CtrAccessor(delete_threshold=0.0)
    trained = Trained({"max_rows": 4, "headroom": 0.5, "every_steps": 0}, accessor=accessor)
    for ids in ([1, 2, 3, 4], [2, 4], [4]):
        trained.step(*ids)
    assert trained.shrinking.shrink() == {"t": 2}
    assert trained.ids == [2, 4]


def test_some_rows_stay_however_old_they_are() -> None:
    trained = Trained({"unseen_steps": 1, "min_rows": 2, "every_steps": 0})
    for each in (1, 2, 3, 4, 5):
        trained.step(each)
    for _ in range(5):
        trained.step()
    assert trained.shrinking.shrink() == {"t": 3}
    assert trained.ids == [4, 5]


def test_hours_are_those_of_the_date_that_was_set() -> None:
    trained = Trained({"unseen_hours": 5, "every_steps": 0})
    start = dt.datetime(2026, 11, 27, 20, tzinfo=dt.UTC)
    for hours, ids in ((0, [1, 2]), (3, [2]), (6, [3])):
        trained.shrinking.set_date(start + dt.timedelta(hours=hours))
        trained.step(*ids)
    assert trained.shrinking.shrink() == {"t": 1}
    assert trained.ids == [2, 3]


def test_bytes_bound_a_table_too() -> None:
    row_bytes = 2 * 4 + 4 + INDEX_BYTES  # the value, when it was seen, and the index
    trained = Trained({"max_bytes": 10 * row_bytes, "every_steps": 0})
    trained.step(*range(50))
    assert len(trained.ids) == 10


@pytest.mark.parametrize(
    ("configs", "options", "match"),
    [
        ({"tables": {"tt": {"max_rows": 9}}}, {}, "did you mean 't'"),
        ({"unseen_steps": 3}, {"accessor": fleet.nn.CtrAccessor()}, "delete_after_unseen_days"),
    ],
)
def test_a_plan_that_does_not_fit_the_model_is_named(
    configs: Any, options: Any, match: str
) -> None:
    with pytest.raises(StrategyError, match=match):
        Trained(configs, **options)


def test_bytes_need_an_optimizer_whose_rows_are_known() -> None:
    with pytest.raises(StrategyError, match="set max_rows"):
        Trained({"max_bytes": 1000}, "rmsprop")


def test_rows_that_went_are_not_in_a_checkpoint_and_what_was_seen_is(tmp_path: Any) -> None:
    trained = Trained({"unseen_steps": 2, "every_steps": 0}, "adagrad")
    for ids in ([1, 2], [2], [2, 3], [3]):
        trained.step(*ids)
    Saving(trained.session).save_persistables(tmp_path / "saved")
    again = Trained({"unseen_steps": 2, "every_steps": 0}, "adagrad")
    Saving(again.session).load_model(tmp_path / "saved")
    assert again.ids == [1, 2, 3]
    assert again.shrinking.shrink() == {"t": 1}
    assert again.ids == [2, 3]
