"""A worker's place in the runner's data, and where it follows from those of other workers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet import runner
from paramfleet.api.public import session
from paramfleet.config.roles import RoleMaker
from paramfleet.model_state.plain import pack, unpack
from paramfleet.runner import HyperParameters
from paramfleet.runner.batches import open_batches
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.settings import RunnerSettings
from paramfleet.runner.models.metrics import Metric
from paramfleet.runner.position import TrainData


class Numbers(runner.Model[HyperParameters]):
    """Text of one slot, a number a line."""

    def create_model(self) -> torch.nn.Module:
        return torch.nn.Identity()

    def create_slots(self) -> Sequence[fleet.data.Slot]:
        return [fleet.data.Slot("n")]

    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        return runner.Feeds((batch[0],), batch[0].flatten().float())

    def create_loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return labels.mean()

    def create_metrics(self) -> Mapping[str, Metric]:
        return {}

    def update_metrics(
        self, metrics: Mapping[str, Any], outputs: Any, labels: torch.Tensor
    ) -> None:
        """There are none."""


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    former, session._role = session._role, RoleMaker(distributed=False)
    yield
    session._role = former


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    names = []
    for part in range(2):
        path = tmp_path / f"part-{part}"
        path.write_text("".join(f"1 {10 * part + number}\n" for number in range(10)))
        names.append(str(path))
    return names


def data_of(files: Sequence[str], **keys: Any) -> TrainData:
    settings = {"reader_type": "QueueDataset", "train_batch_size": 4, **keys}
    folder = Path(files[0]).parent
    config = Config(
        path=folder / "config.yaml",
        folder=folder,
        modules=folder,
        runner=RunnerSettings(**settings),
        hyper_parameters=HyperParameters(),
        own={},
        given=(),
    )
    model = Numbers(config)
    return TrainData(model, open_batches(model, files, test=False), files)


def used(data: TrainData, most: int = 100) -> list[int]:
    seen: list[int] = []
    for feeds in data:
        seen += feeds.inputs[0].flatten().tolist()
        if len(seen) >= most:
            break
    return seen


def moved(state: Any) -> Any:
    """Return a state as a checkpoint gives it back."""
    return unpack(pack(state))


@pytest.mark.parametrize("epoch", [0, 3])
def test_two_workers_places_become_one(files: list[str], epoch: int) -> None:
    first, second = data_of(files[:1]), data_of(files[1:])
    for data in (first, second):
        data.begin(epoch)
    seen = used(first, most=4) + used(second, most=8)
    alone = data_of(files)

    place = alone.reshard([moved(first.state_dict()), moved(second.state_dict())], 0, 1)
    assert place is not None
    alone.load_state_dict(place)
    assert alone.loaded_epoch == epoch
    assert moved(alone.state_dict()) == moved(place)
    alone.begin(epoch)

    assert sorted(seen + used(alone)) == list(range(20))
    alone.begin(epoch + 1)
    assert sorted(used(alone)) == list(range(20))


def test_a_worker_that_was_an_epoch_ahead_has_nothing_left_of_this_one(
    files: list[str],
) -> None:
    first, second = data_of(files[:1]), data_of(files[1:])
    first.begin(0)
    seen = used(first, most=4)
    second.begin(0)
    seen += used(second)
    second.begin(1)
    used(second, most=4)
    alone = data_of(files)

    place = alone.reshard([first.state_dict(), second.state_dict()], 0, 1)
    assert place is not None
    alone.load_state_dict(place)

    assert alone.begin(0) > 0
    assert sorted(seen + used(alone)) == list(range(20))


@pytest.mark.parametrize(
    "keys",
    [
        {"reader_type": "InmemoryDataset"},
        {"split_batches": True, "sync_mode": "async"},
    ],
)
def test_other_places_do_not_follow_from_those_of_another_number(
    files: list[str], keys: dict[str, Any]
) -> None:
    data = data_of(files, **keys)
    data.begin(2)
    used(data, most=4)
    assert data.loaded_epoch is None

    assert data.reshard([data.state_dict()], 0, 2) is None
    assert data.loaded_epoch == 2  # which begins anew


def test_places_of_another_reader_lead_nowhere(files: list[str]) -> None:
    memory = data_of(files, reader_type="InmemoryDataset")
    memory.begin(0)
    used(memory, most=4)

    assert data_of(files).reshard([memory.state_dict()] * 2, 0, 1) is None


def test_shared_batches_outside_sync_are_counted(files: list[str]) -> None:
    keys = {"split_batches": True, "sync_mode": "async"}
    data, again = data_of(files, **keys), data_of(files, **keys)
    data.begin(0)
    seen = used(data, most=8)

    again.load_state_dict(moved(data.state_dict()))

    assert again.begin(0) == 2
    assert sorted(seen + used(again)) == list(range(20))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"version": 2}, ValueError),
        ({"key": 7}, ValueError),
        ({"epoch": -1}, ValueError),
        ({"batches": 1.5}, ValueError),
    ],
)
def test_what_is_no_place_is_refused_and_nothing_changed(
    files: list[str], wrong: dict[str, Any], error: type[Exception]
) -> None:
    data = data_of(files)
    state = data.state_dict()

    with pytest.raises(error):
        data.load_state_dict(state | wrong)

    assert data.state_dict() == state


@pytest.mark.parametrize("kind", ["QueueDataset", "InmemoryDataset"])
@pytest.mark.parametrize("inner", [{}, {"kind": "other"}, {"shuffles": 3}, [], "x"])
def test_a_malformed_place_in_the_data_is_left_out_by_name(
    files: list[str], kind: str, inner: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = data_of(files, reader_type=kind)
    state = data.state_dict() | {"batches": 2, "data": inner}
    data.load_state_dict(state)

    assert data.begin(0) == 0

    assert sorted(used(data)) == list(range(20))
    assert [r.getMessage() for r in caplog.records] == ["worker.position_not_taken"]


COUNTED = {"split_batches": True, "sync_mode": "async"}
"""With which no reader knows where it is: batches are counted."""


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        (COUNTED, {"batches": 6}),
        (COUNTED, {"batches": 2**53}),
        ({"reader_type": "InmemoryDataset"}, {"batches": 2, "data": None}),
        ({}, {"batches": 2, "data": None}),
    ],
    ids=["one too many", "far too many", "memory", "queue"],
)
def test_a_place_that_the_data_does_not_have_is_left_out_by_name(
    files: list[str],
    keys: dict[str, Any],
    wrong: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = data_of(files, **keys)
    data.load_state_dict(data.state_dict() | wrong)
    data.begin(0)

    assert sorted(used(data)) == list(range(20))

    (record,) = caplog.records
    assert record.getMessage() == "worker.position_not_taken"
    assert vars(record)["remedy"] == "the epoch starts from its beginning"


def test_a_place_at_the_end_of_an_epoch_leaves_nothing_of_it(
    files: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = data_of(files, **COUNTED)
    data.load_state_dict(data.state_dict() | {"batches": 5})

    assert data.begin(0) == 5
    assert used(data) == []
    assert caplog.records == []
    assert (data.state_dict()["epoch"], data.state_dict()["batches"]) == (1, 0)


def test_a_place_counts_what_was_yielded_and_the_end_of_an_epoch(files: list[str]) -> None:
    data = data_of(files)
    data.begin(5)
    at: list[tuple[int, int]] = []
    for _ in data:
        state = data.state_dict()
        at.append((state["epoch"], state["batches"]))

    assert at == [(5, number) for number in range(1, 6)]
    assert (data.state_dict()["epoch"], data.state_dict()["batches"]) == (6, 0)
