"""Slots with several ids, or none: all are there, and the zoo's models sum their vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet import runner
from paramfleet.data import Slot
from paramfleet.runner import batches
from paramfleet.runner.batches import SampleError, SlotError, open_batches, stack
from paramfleet.runner.config.configuration import read_config
from paramfleet.runner.config.errors import ModelFolderError
from paramfleet.runner.folders import load_model_class
from paramfleet.runner.learning import Learner
from paramfleet_shared.system.clock import SystemClock

MODELS = Path(__file__).parents[4] / "models"
NO = runner.NO_ID


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    fleet.init()
    batches._cut.clear()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


class Sums(runner.Model[runner.HyperParameters]):
    """Its slots are those that a test sets."""

    slots: tuple[Slot, ...] = ()

    @override
    def create_slots(self) -> tuple[Slot, ...]:
        return self.slots

    @override
    def create_model(self) -> torch.nn.Module:
        return torch.nn.Linear(1, 1)

    @override
    def create_feeds(self, batch: Any) -> runner.Feeds:
        return runner.Feeds(tuple(batch), batch[0])

    @override
    def create_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return outputs.sum()

    @override
    def create_metrics(self) -> dict[str, Any]:
        return {}

    @override
    def update_metrics(self, metrics: Any, outputs: Any, labels: Any) -> None:
        pass


def model_of(cls: type[Any], folder: Path, *options: str) -> Any:
    path = folder / "config.yaml"
    if not path.exists():
        path.write_text("")
    return cls(read_config(path, options).read_as(cls.parameters))


def slot_batches(folder: Path, text: str, *slots: Slot) -> list[list[Any]]:
    """Return the only batch of a text, as lists."""
    (folder / "rows").write_text(text)
    model = model_of(Sums, folder, "runner.reader_type=QueueDataset")
    model.slots = slots
    (batch,) = open_batches(model, [str(folder / "rows")], test=False)
    return [field.tolist() for field in batch]


TEXT = "1 1 2 5 6 1 0.5\n1 0 0 2 1.5 2.5\n1 1 1 7 1 3.5\n"


def test_a_slot_of_the_default_width_has_all_its_values(tmp_path: Path) -> None:
    label, ids, price = slot_batches(
        tmp_path, TEXT, Slot("label"), Slot("ids"), Slot("price", "float32")
    )

    assert label == [[1], [0], [1]]
    assert ids == [[5, 6], [NO, NO], [7, NO]]
    assert price == [[0.5, 0.0], [1.5, 2.5], [3.5, 0.0]]


def test_a_slot_with_a_width_is_padded_and_what_is_cut_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slots = Slot("label"), Slot("ids", width=1), Slot("price", "float32", width=3)

    slot_batches(tmp_path, TEXT, *slots)
    _, ids, price = slot_batches(tmp_path, TEXT, *slots)

    assert ids == [[5], [0], [7]]
    assert price == [[0.5, 0.0, 0.0], [1.5, 2.5, 0.0], [3.5, 0.0, 0.0]]
    (record,) = caplog.records
    assert record.message == "worker.slot_values_cut"
    assert (record.__dict__["slot"], record.__dict__["values"]) == ("ids", 2)


def test_the_id_that_stands_for_none_cannot_be_in_the_data(tmp_path: Path) -> None:
    with pytest.raises(SlotError, match="ids"):
        slot_batches(tmp_path, f"1 1 2 5 {NO}\n1 1 0\n", Slot("label"), Slot("ids"))


def test_fields_of_any_number_of_ids_are_padded_where_a_model_says_so() -> None:
    samples = [(1, [5, 6], 0.5), (0, [], 1.5)]

    assert [field.tolist() for field in stack(samples, pads_ids=True)] == [
        [[1], [0]],
        [[5, 6], [NO, NO]],
        [[0.5], [1.5]],
    ]
    for wrong in ([([0.5, 1.5],), ([1.5],)], [([[1], [2]],), ([[1, 2]],)]):
        with pytest.raises(SampleError, match="width"):
            stack(wrong, pads_ids=True)


CLICKS = [
    "rank/dnn", "rank/wide_deep", "rank/deepfm", "rank/dcn_v2", "rank/xdeepfm", "rank/autoint",
    "rank/dlrm", "rank/logistic_regression",
]  # fmt: skip
SIZES = ("sparse_inputs_slots=27", "sparse_feature_dim=4", "dense_input_dim=13")


def zoo_model(name: str, *options: str) -> Any:
    sizes = ("bot_layer_sizes=[5,4]", "num_field=26") if name == "rank/dlrm" else ()
    path = MODELS / name / "config.yaml"
    raw = read_config(
        path, [*options, *(f"hyper_parameters.{size}" for size in (*SIZES, *sizes))]
    )
    cls = load_model_class(raw)
    return cls(raw.read_as(cls.parameters))


def text_of(*rows: dict[int, list[int]]) -> str:
    """Return slot text of examples with these ids; each other slot has its number as id."""
    lines = []
    for row in rows:
        words = ["click:1", *(["dense_feature:0.5"] * 13)]
        for slot in range(1, 27):
            words += [f"{slot}:{each}" for each in row.get(slot, [slot])]
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("kind", ["RecDataset", "QueueDataset"])
@pytest.mark.parametrize("name", CLICKS)
def test_models_of_clicks_sum_the_ids_of_a_slot(name: str, kind: str, tmp_path: Path) -> None:
    """A slot with two ids is one whose vector is the sum of theirs."""
    file = tmp_path / "rows"
    command = "runner.pipe_command=python ../dnn/pipe_reader.py"
    model = zoo_model(name, f"runner.reader_type={kind}", command)
    net = fleet.distributed_model(model.create_model())
    fleet.distributed_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    fleet.init_worker()
    file.write_text(text_of({3: [100, 200]}, {}))
    feeds = model.create_feeds(next(iter(open_batches(model, [str(file)], test=False))))
    ids, dense = feeds.inputs
    assert ids.shape == (2, 26, 2)
    assert ids[0, 2].tolist() == [100, 200]
    assert ids[1, 2].tolist() == [3, NO]

    with torch.no_grad():
        both, one = net(ids, dense).tolist()
        file.write_text(text_of({}))
        plain = model.create_feeds(next(iter(open_batches(model, [str(file)], test=False))))
        assert plain.inputs[0].shape == (1, 26), "as ever where each slot has one id"
        (alone,) = net(*plain.inputs).tolist()
        summed = net_of_vectors(net, ids, dense)

    assert one == pytest.approx(alone, abs=1e-6)
    assert both == pytest.approx(summed, abs=1e-6)


def net_of_vectors(net: Any, ids: torch.Tensor, dense: torch.Tensor) -> float:
    """Return the first example's logit with hooks that put the sums in the lookups' place."""
    two, single = ids[:1, 2].clone(), ids[:1, :, 0].clone()
    single[0, 2] = 999  # never trained: its own vector is taken out again
    handles = []
    for module in net.modules():
        if isinstance(module, fleet.nn.Embedding):
            both = module(two).sum(1)

            def put(_: Any, __: Any, out: torch.Tensor, both: Any = both) -> torch.Tensor:
                before, after = out[:, :2], out[:, 3:]
                return torch.cat([before, both.unsqueeze(1), after], dim=1)

            handles.append(module.register_forward_hook(put))
        elif isinstance(module, fleet.nn.EmbeddingBag):
            bag, own = module(two), module(torch.tensor([[999]]))

            def add(
                _: Any, __: Any, out: torch.Tensor, bag: Any = bag, own: Any = own
            ) -> torch.Tensor:
                summed: torch.Tensor = out + bag - own
                return summed

            handles.append(module.register_forward_hook(add))
    logit = net(single, dense[:1]).item()
    for handle in handles:
        handle.remove()
    return float(logit)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("click:1 0:5", "no slot 0"),
        ("click:1 27:5", "no slot 27"),
        ("click:1 click:0 1:5", "several labels"),
        ("click:1 dense_feature:1 1:5", "1 numbers"),
    ],
)
def test_slot_text_that_is_wrong_is_named(line: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(line + "\n")
    model = zoo_model("rank/dnn")

    with pytest.raises(runner.LineError, match=rule):
        list(open_batches(model, [str(tmp_path / "rows")], test=False))


@pytest.mark.parametrize("padding", [None, NO])
def test_a_lookup_of_negative_ids_must_leave_no_id_out(padding: int | None) -> None:
    class Hashed(runner.ClickModel[runner.CtrParameters]):
        @override
        def create_model(self) -> torch.nn.Module:
            bag = fleet.nn.EmbeddingBag(
                0, 1, negative_ids=True, padding_idx=padding, mode="sum"
            )
            return torch.nn.Sequential(bag)

    config = zoo_model("rank/dnn").config
    if padding is None:
        with pytest.raises(ModelFolderError, match="0: with negative_ids=True"):
            Learner(Hashed(config), SystemClock())
    else:
        Learner(Hashed(config), SystemClock())
