"""What a failing save leaves behind."""

import json
import os
import resource
import shutil
import stat
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import RoleMaker
from paramfleet.session.checkpoint import whole_folders
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.training.optimizer import LoadIncompleteError
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    CheckpointWriteError,
    ManifestError,
    read_manifest,
)
from paramfleet_shared.files.folders import FolderNameError


def trained(name: str, kind: Any = torch.optim.Adagrad) -> tuple[Session, Saving]:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(9, 2, name=name), torch.nn.Linear(2, 1))
    )
    optimizer = session.distributed_optimizer(kind(model.parameters(), lr=0.1))
    optimizer.minimize(model(torch.arange(9)).pow(2).sum())
    return session, Saving(session)


def test_a_name_that_cannot_be_taken_leaves_the_former_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, saving = trained("a")
    saving.save_persistables(tmp_path / "kept")
    before = sorted(path.name for path in (tmp_path / "kept").iterdir())
    monkeypatch.setattr(whole_folders, "_renameat2", None)
    rename, refusals = Path.rename, ["once: the way back must work"]

    def refuse(self: Path, target: Path) -> Path:
        if target.name == "kept" and refusals:
            raise OSError(refusals.pop())
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)

    with pytest.raises(CheckpointWriteError, match="once"):
        saving.save_persistables(tmp_path / "kept")

    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_saving_and_loading_alone_goes_on_where_it_was(tmp_path: Path) -> None:
    session, saving = trained("b")
    saving.save_persistables(tmp_path / "one")
    assert session.model is not None
    here = session.model(torch.arange(9)).detach()

    other, loading = trained("b")
    assert other.model is not None
    other.optimizer.minimize(other.model(torch.arange(9)).sum())  # type: ignore[union-attr]  # made by trained()
    loading.load_model(tmp_path / "one")

    assert torch.equal(other.model(torch.arange(9)), here)


TABLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accessor": {"accessor": fleet.nn.CtrAccessor()},
    "entry": {"entry": fleet.nn.CountFilterEntry(2)},
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_load_leaves_no_row_that_the_checkpoint_lacks(tmp_path: Path, kind: str) -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    table = fleet.nn.Embedding(
        0, 4, name="t", initializer=fleet.nn.normal(std=0.1), **TABLES[kind]
    )
    model = session.distributed_model(torch.nn.ModuleList([table]))
    optimizer = session.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
    saving, ids = Saving(session), torch.arange(9)

    def use(*some: int) -> None:
        optimizer.minimize(table(torch.tensor(some)).pow(2).sum())

    def held() -> dict[int, list[float]]:
        saving.save_inference_model(tmp_path / "export")
        rows = fleet.serving.tables(tmp_path / "export")["t"]
        return dict(zip(rows.ids.tolist(), rows.rows.tolist(), strict=True))

    for some in ((1, 2, 3), (1, 2, 3), (3, 1)):
        use(*some)
    there = held()
    with torch.no_grad():
        expected = table(ids)
    saving.save_persistables(tmp_path / "one")
    for some in ((4, 5, 6), (5, 4, 1), (6, 2)):
        use(*some)
    assert set(there) < set(held())

    saving.load_model(tmp_path / "one")

    with torch.no_grad():
        assert held() == there
        assert torch.equal(table(ids), expected)
    assert list(there) == [1, 2, 3]
    use(5, 7)  # counted from the beginning, as the pservers do after a load
    assert set(held()) == {1, 2, 3} | ({5, 7} if kind != "entry" else set())


@pytest.mark.parametrize(
    "kind", [torch.optim.Adagrad, fleet.optim.RowwiseAdagrad, fleet.optim.FTRL]
)
def test_the_next_step_after_a_load_is_the_one_that_was_next(tmp_path: Path, kind: Any) -> None:
    def step(session: Session) -> torch.Tensor:
        assert session.optimizer is not None
        assert session.model is not None
        session.optimizer.minimize(session.model(torch.arange(9)).pow(2).sum())
        found: torch.Tensor = session.model(torch.arange(9)).detach()
        return found

    session, saving = trained("d", kind)
    step(session)
    saving.save_persistables(tmp_path / "one")
    expected = step(session)

    other, loading = trained("d", kind)
    loading.load_model(tmp_path / "one")

    assert torch.equal(step(other), expected)


def test_each_table_keeps_the_steps_that_its_optimizer_counts(tmp_path: Path) -> None:
    session, saving = trained("steps")
    saving.save_persistables(tmp_path / "one")
    path = tmp_path / "one" / "manifest.json"
    manifest = json.loads(path.read_text())
    for table in manifest["tables"]:  # as GEO's: rows count the steps of all workers
        table["version"] = {"sparse": 18, "dense": 9}[table["kind"]]
    path.write_text(json.dumps(manifest))

    saving.load_model(tmp_path / "one")
    assert session.optimizer is not None
    assert session.optimizer.num_steps == 1
    saving.save_persistables(tmp_path / "two")

    tables = read_manifest(tmp_path / "two").tables
    assert {table.spec.kind: table.version for table in tables} == {"sparse": 18, "dense": 9}


class Interrupted(torch.nn.Linear):
    """A module that the user interrupts while it takes its state, until it ``goes_on``."""

    goes_on = False

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 1}

    def set_extra_state(self, state: Any) -> None:
        del state
        if not self.goes_on:
            raise KeyboardInterrupt


def test_a_load_that_is_interrupted_lets_no_step_follow_until_another(tmp_path: Path) -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    inner = Interrupted(2, 1)
    model = session.distributed_model(torch.nn.Sequential(inner))
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    saving = Saving(session)
    saving.save_persistables(tmp_path / "one")

    with pytest.raises(KeyboardInterrupt):
        saving.load_model(tmp_path / "one")

    with pytest.raises(LoadIncompleteError, match="KeyboardInterrupt"):
        optimizer.minimize(model(torch.ones(1, 2)).sum())
    inner.goes_on = True
    saving.load_model(tmp_path / "one")
    optimizer.minimize(model(torch.ones(1, 2)).sum())


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trained("c")[1].save_persistables(tmp_path / "one")

    with pytest.raises(ManifestError, match="doesn't have"):
        trained("d")[1].load_model(tmp_path / "one")


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Let the system refuse what would make a file longer, as a full disk does."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def wide() -> Saving:
    """Return the saving of a model whose largest file is that of its dense parameters."""
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(9, 200, name="w"), torch.nn.Linear(200, 200))
    )
    session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    return Saving(session)


@pytest.mark.parametrize(
    ("function", "more"),
    [
        ("save_persistables", -1000),
        ("save_inference_model", -1000),
        ("save_inference_model", 600),
    ],
    ids=["persistables", "inference-parts", "inference-model"],
)
def test_what_the_system_refuses_is_named_by_the_folder_that_was_asked_for(
    tmp_path: Path, function: str, more: int
) -> None:
    saving = wide()
    save = getattr(saving, function)
    saving.save_persistables(tmp_path / "plain")
    most = max(each.stat().st_size for each in (tmp_path / "plain").iterdir())

    with files_of_at_most(most + more), pytest.raises(CheckpointWriteError) as caught:
        save(tmp_path / "ck")

    assert caught.value.path == str(tmp_path / "ck")
    assert str(caught.value).startswith(f"{tmp_path / 'ck'}: ")
    shown = "".join(traceback.format_exception(caught.value))
    assert ".partial" not in shown
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
@pytest.mark.parametrize("function", ["save_persistables", "save_inference_model"])
def test_a_folder_that_can_not_be_made_is_named_as_it_was_asked_for(function: str) -> None:
    with pytest.raises(CheckpointWriteError) as caught:
        getattr(wide(), function)("/proc/ck")

    assert caught.value.path == "/proc/ck"
    assert ".partial" not in "".join(traceback.format_exception(caught.value))


def test_saving_needs_a_model() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))

    with pytest.raises(CallOrderError, match="save_persistables"):
        Saving(session).save_persistables("never")
    with pytest.raises(CallOrderError, match="distributed_model"):
        Saving(session).save_inference_model("never")


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 300])
def test_a_name_that_no_folder_can_have_is_refused_alone_too(name: str) -> None:
    _, saving = trained("names")

    for act in (saving.save_persistables, saving.load_model, saving.save_inference_model):
        with pytest.raises(FolderNameError):
            act(name)


def test_what_is_saved_alone_is_a_consistent_cut(tmp_path: Path) -> None:
    _, saving = trained("cut")

    cut = saving.save_persistables(tmp_path / "one")

    assert cut is not None
    assert cut.consistent
    assert read_manifest(tmp_path / "one").cut == cut


def test_an_id_that_two_files_have_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    session, saving = trained("twice")
    saving.save_persistables(tmp_path / "one")
    path = tmp_path / "one" / "manifest.json"
    manifest = json.loads(path.read_text())
    (file,) = [each for each in manifest["files"] if each["kind"] == "sparse"]
    shutil.copy(path.with_name(file["name"]), path.with_name("copy.safetensors"))
    manifest["files"].append(file | {"name": "copy.safetensors"})
    path.write_text(json.dumps(manifest))
    assert session.model is not None
    here = session.model(torch.arange(9)).detach()

    with pytest.raises(CheckpointDamagedError, match=r"copy\.safetensors: id 0 of table"):
        saving.load_model(tmp_path / "one")

    assert torch.equal(session.model(torch.arange(9)), here)


def test_a_negative_id_of_a_table_that_takes_none_is_refused_by_its_file(
    tmp_path: Path,
) -> None:
    def made(*, negative_ids: bool) -> tuple[torch.nn.Module, Saving]:
        session = Session()
        session.init(RoleMaker(distributed=False))
        rows = fleet.nn.Embedding(0, 2, name="hashed", negative_ids=negative_ids)
        model = session.distributed_model(rows)
        session.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
        return model, Saving(session)

    hashed, saving = made(negative_ids=True)
    hashed(torch.tensor([-7, 3])).sum().backward()
    saving._session.optimizer.step()  # type: ignore[union-attr]  # made() has made it
    saving.save_persistables(tmp_path / "one")
    (file,) = read_manifest(tmp_path / "one").files

    with pytest.raises(CheckpointDamagedError, match="id -7 of table 'hashed'") as caught:
        made(negative_ids=False)[1].load_model(tmp_path / "one")

    assert caught.value.path == str(tmp_path / "one" / file.name)
    assert "negative_ids=True" in str(caught.value)
    assert made(negative_ids=True)[1].load_model(tmp_path / "one") == []


@pytest.mark.parametrize(
    ("above", "modes"), [(0o777, (0o700, 0o600)), (0o2750, (0o2750, 0o640))]
)
def test_a_checkpoint_is_private_unless_its_folder_gives_its_group_on(
    tmp_path: Path, above: int, modes: tuple[int, int]
) -> None:
    _, saving = trained("a")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    folder.chmod(above)
    former = os.umask(0)
    try:
        saving.save_persistables(folder / "new")
        saving.save_persistables(folder / "new")
    finally:
        os.umask(former)

    assert stat.S_IMODE((folder / "new").stat().st_mode) == modes[0]
    files = list((folder / "new").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {modes[1]}
    assert len(files) > 2
