"""A loaded export answers as the job does, for ids that were trained and others."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import EmbeddingOptionError
from paramfleet.serving import ExportMismatchError, Rows
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.tables.embedding_errors import IdError


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_known_and_unknown_ids_read_what_they_read_in_the_job(
    exported: Any, make_model: Any, mode: str, storage: str
) -> None:
    export = exported(make_model(mode, storage))

    served = fleet.serving.load(export.path, make_model(mode, storage))

    assert not served.training
    assert torch.equal(export.predicted(served), export.expected)


@pytest.mark.parametrize("unknown", [None, "constant"])
def test_a_constant_given_as_a_whole_number_is_served(
    exported: Any, make_model: Any, unknown: Any
) -> None:
    def make() -> Any:
        model = make_model()
        model.wide = fleet.nn.EmbeddingBag(0, 4, mode="sum", initializer=fleet.nn.constant(0))
        return model

    export = exported(make())

    served: Any = fleet.serving.load(export.path, make(), unknown=unknown)

    if unknown is None:
        assert torch.equal(export.predicted(served), export.expected)
    ids = torch.tensor([[70, 80, 81]])
    assert torch.equal(served.wide(ids), torch.zeros(1, 4))


def test_bags_with_offsets_and_weights_are_the_job_s(exported: Any, make_model: Any) -> None:
    export = exported()
    served = fleet.serving.load(export.path, make_model())
    ids, offsets = torch.tensor([5, 70, 0, 9, 80, 80]), torch.tensor([0, 2, 2, 3])
    weights = torch.rand(6)

    for arguments in ((ids, offsets), (ids, offsets, weights)):
        assert torch.equal(served.wide(*arguments), export.model.wide(*arguments))


def test_rows_are_given_once_where_they_are_asked_for_so(
    exported: Any, make_model: Any
) -> None:
    export = exported()
    served = fleet.serving.load(export.path, make_model())
    ids = torch.tensor([[5, 70], [0, 5]])

    rows, index = served.deep(ids, different=True)

    assert rows.shape == (3, 4)
    assert torch.equal(rows[index], export.model.deep(ids))


@pytest.mark.parametrize("ids", [torch.tensor([[1, -2]]), torch.tensor([[0.5]])])
def test_what_cannot_be_an_id_is_refused_as_in_the_job(
    exported: Any, make_model: Any, ids: torch.Tensor
) -> None:
    export = exported()
    served = fleet.serving.load(export.path, make_model())

    with pytest.raises(IdError) as ours:
        served.deep(ids)
    with pytest.raises(IdError) as theirs:
        export.model.deep(ids)

    assert str(ours.value) == str(theirs.value)


def test_hashes_above_two_to_the_63_are_served_where_they_are_trained(
    tmp_path: Path,
) -> None:
    def made() -> torch.nn.Module:
        return fleet.nn.Embedding(0, 3, name="hashes", negative_ids=True)

    ids = torch.tensor([-1, 5, -(2**63), 2**63 - 1])
    session = Session()
    session.init()
    model = session.distributed_model(made())
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    session.init_worker()
    optimizer.minimize(model(ids[:3]).sum())
    Saving(session).save_inference_model(tmp_path / "export")

    served = fleet.serving.load(tmp_path / "export", made())

    assert torch.equal(served(ids), model.eval()(ids))


KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "counted": (4, {"entry": fleet.nn.CountFilterEntry(2), "storage": "bfloat16"}),
    "by hash": (4, {"entry": fleet.nn.ProbabilityEntry(0.5)}),
    "evicted": (4, {}),
    "accessor": (4, {"accessor": fleet.nn.CtrAccessor()}),
    "drawn": (4, {"accessor": fleet.nn.CtrAccessor(zero_init=False)}),
    "short": (1, {"accessor": fleet.nn.CtrAccessor()}),
    "both": (
        4,
        {
            "accessor": fleet.nn.CtrAccessor(zero_init=False, cvm=True),
            "entry": fleet.nn.CountFilterEntry(2),
        },
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_without_a_row_read_what_the_job_gives_where_a_push_makes_rows(
    tmp_path: Path, kind: str
) -> None:
    width, options = KINDS[kind]
    has_cvm = kind == "both"

    def made() -> torch.nn.Module:
        normal = fleet.nn.normal(mean=1.0, std=0.1)
        dim = width + 2 * has_cvm
        return fleet.nn.Embedding(0, dim, name="t", initializer=normal, **options)

    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(made())
    strategy = fleet.DistributedStrategy()
    if kind == "evicted":
        strategy.eviction_configs = {"max_rows": 1000}
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = session.distributed_optimizer(sgd, strategy)
    session.init_worker()
    for used in ([1, 2, 3], [1, 2, 4]):
        rows = model(torch.tensor(used))
        if has_cvm:
            rows = fleet.nn.continuous_value_model(rows, torch.ones(3, 2))
        optimizer.minimize(rows.sum())
    saving, ids = Saving(session), torch.tensor([1, 2, 3, 4, 5, 1 << 60])
    saving.save_inference_model(tmp_path / "export")
    expected = model.eval()(ids).detach()

    served = fleet.serving.load(tmp_path / "export", made())

    assert torch.equal(served(ids), expected)
    drawn = expected[-2:, 2 * has_cvm]
    assert bool(drawn.any()) == (kind != "accessor")
    shared = fleet.serving.load(tmp_path / "export", made(), unknown="constant")(ids[-2:])
    assert torch.equal(shared, (expected[-2:] != 0).float())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_the_modes_of_all_files_follow_the_umask(exported: Any, umask: int, mode: int) -> None:
    former = os.umask(umask)
    try:
        export = exported()
    finally:
        os.umask(former)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in export.path.iterdir()}
    assert len(modes) == 4
    assert set(modes.values()) == {mode}
    assert stat.S_IMODE(export.path.stat().st_mode) == 0o777 & ~umask


def test_rows_stay_in_their_file(exported: Any, make_model: Any) -> None:
    export = exported()

    served = fleet.serving.load(export.path, make_model())

    mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert str(export.path / "rows.deep.safetensors") in mapped
    assert "rows" not in served.state_dict()


def test_a_loaded_model_outlives_its_folder(exported: Any, make_model: Any) -> None:
    export = exported()
    before = fleet.serving.load(export.path, make_model())
    expected = export.expected

    other = exported(make_model("max"))  # to the same folder
    after = fleet.serving.load(other.path, make_model("max"))

    assert torch.equal(export.predicted(before), expected)
    assert torch.equal(other.predicted(after), other.expected)


def test_answers_go_to_the_device_and_have_the_type_of_the_model(
    exported: Any, make_model: Any
) -> None:
    export = exported()

    away = fleet.serving.load(export.path, make_model(), map_location="meta")
    half = fleet.serving.load(export.path, make_model()).to(torch.bfloat16)

    assert away(export.probe).device.type == "meta"
    assert away.deep.rows.rows.device.type == "cpu"
    assert export.predicted(half).dtype == torch.bfloat16
    assert half.deep.rows.rows.dtype == torch.float32


def test_tables_can_be_copied_to_a_device(exported: Any, make_model: Any) -> None:
    export = exported()

    served = fleet.serving.load(export.path, make_model(), rows_location="meta")

    assert served.deep.rows.rows.device.type == "meta"


class Twice(torch.nn.Module):
    """One module at two paths, and another one of its table."""

    def __init__(self, name: str = "words") -> None:
        super().__init__()
        self.first = fleet.nn.Embedding(0, 4, name=name)
        self.again = self.first
        self.deeper = torch.nn.ModuleList([fleet.nn.Embedding(0, 4, name=name)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.first(ids) + self.again(ids) * self.deeper[0](ids)
        return total


def test_modules_that_share_a_table_share_it_when_served(exported: Any) -> None:
    export = exported(Twice())

    served = fleet.serving.load(export.path, Twice())

    assert served.first is served.again
    assert served.first.rows is served.deeper[0].rows
    assert torch.equal(export.predicted(served), export.expected)


def test_a_model_that_is_a_table_itself_is_served(exported: Any) -> None:
    export = exported(fleet.nn.Embedding(0, 3, name="words"))

    served = fleet.serving.load(export.path, fleet.nn.Embedding(0, 3, name="words"))

    assert torch.equal(export.predicted(served), export.expected)


@pytest.mark.parametrize("names", [("a/b", "a_b"), ("w" * 255 + "1", "w" * 255 + "2")])
def test_tables_of_similar_names_have_files_of_their_own(
    exported: Any, names: tuple[str, str]
) -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = fleet.nn.Embedding(0, 2, name=names[0])
            self.other = fleet.nn.Embedding(0, 2, name=names[1])

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = self.one(ids) - 2 * self.other(ids)
            return total

    export = exported(Both())

    served = fleet.serving.load(export.path, Both())

    assert len(list(export.path.glob("rows.*"))) == 2
    assert torch.equal(export.predicted(served), export.expected)


def test_a_table_without_rows_is_served(exported: Any) -> None:
    class Unused(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = fleet.nn.Embedding(0, 2)
            self.unused = fleet.nn.Embedding(0, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.used(ids)
            return rows if self.training else rows + self.unused(ids)

    export = exported(Unused())

    served = fleet.serving.load(export.path, Unused())

    assert torch.equal(export.predicted(served), export.expected)


def test_tables_alone_are_modules_from_ids_to_rows(exported: Any) -> None:
    export = exported()

    tables = fleet.serving.tables(export.path)

    assert sorted(tables) == ["deep", "wide"]
    assert all(isinstance(rows, Rows) for rows in tables.values())
    ids = torch.tensor([[5, 70, 6]])
    assert torch.equal(tables["deep"](ids), export.model.deep(ids))


class Doubled(fleet.nn.Embedding):
    """A module with a forward that nothing else computes."""

    def forward(self, *args: Any, **options: Any) -> Any:
        return 2 * super().forward(*args, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, EmbeddingOptionError),
        ({"map_location": "nowhere"}, RuntimeError),
        ({"rows_location": "nowhere"}, RuntimeError),
    ],
)
def test_what_cannot_be_served_is_left_as_it_is(
    exported: Any, options: Any, error: type[Exception]
) -> None:
    def model() -> torch.nn.Module:
        kind = fleet.nn.Embedding if options else Doubled
        return torch.nn.Sequential(kind(0, 2), torch.nn.Linear(2, 1))

    export, fresh = exported(model()), model()
    modules, weight = dict(fresh.named_modules()), fresh.state_dict()["1.weight"].clone()

    with pytest.raises(error):
        fleet.serving.load(export.path, fresh, **options)

    assert dict(fresh.named_modules()) == modules
    assert torch.equal(fresh.state_dict()["1.weight"], weight)


class Wider(torch.nn.Module):
    """``Clicks`` with one thing changed."""

    deep: Any
    tower: Any

    def __init__(self, model: torch.nn.Module, change: str) -> None:
        super().__init__()
        for name, child in model.named_children():
            setattr(self, name, child)
        if change == "width":
            self.deep = fleet.nn.Embedding(0, 5)
        elif change == "table":
            self.more = fleet.nn.Embedding(0, 4)
        elif change == "shape":
            self.tower[0] = torch.nn.Linear(16, 9)
        elif change == "lacks":
            self.head = torch.nn.Linear(1, 1)
        else:
            self.tower.pop(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("width", "rows of table 'deep' are 4 wide, not 5"),
        ("table", "module 'more' wants table 'more', and the export has: deep, wide"),
        ("shape", "'tower.0.bias', 'tower.0.weight' in another shape"),
        ("lacks", "lacks 'head.bias', 'head.weight', which the model has"),
        ("has", "has 'tower.2.bias', 'tower.2.weight', which the model lacks"),
    ],
)
def test_another_model_is_refused_and_stays_as_it_is(
    exported: Any, make_model: Any, change: str, message: str
) -> None:
    export = exported()
    model = Wider(make_model(), change)
    modules, state = dict(model.named_modules()), model.state_dict()
    state = {name: value.clone() for name, value in state.items()}

    with pytest.raises(ExportMismatchError, match=message):
        fleet.serving.load(export.path, model)

    assert dict(model.named_modules()) == modules
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_the_manifest_says_what_is_in_the_folder(exported: Any) -> None:
    export = exported()

    manifest = json.loads((export.path / "manifest.json").read_text(encoding="utf-8"))

    files = [manifest["model"], *(table["file"] for table in manifest["tables"])]
    assert {file["name"] for file in files} | {"manifest.json"} == {
        path.name for path in export.path.iterdir()
    }
    assert {table["unknown"] for table in manifest["tables"]} == {"initial"}
