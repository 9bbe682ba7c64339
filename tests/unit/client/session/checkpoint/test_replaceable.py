"""A save replaces what it wrote itself, and nothing else."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.session.checkpoint import whole_folders
from paramfleet.session.checkpoint.periodic import PeriodicCheckpoints
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import MANIFEST, read_manifest
from paramfleet_shared.files.folders import FolderNameError
from paramfleet_shared.testing.clock import FakeClock

Act = Callable[[Saving, Path | str], Any]


def _checkpoint(saving: Saving, folder: Path | str) -> None:
    saving.save_persistables(folder)


def _export(saving: Saving, folder: Path | str) -> None:
    saving.save_inference_model(folder)


BOTH = pytest.mark.parametrize("save", [_checkpoint, _export])


@pytest.fixture
def saving() -> Saving:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(9, 2, name="way"), torch.nn.Linear(2, 1))
    )
    optimizer = session.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
    optimizer.minimize(model(torch.arange(9)).pow(2).sum())
    return Saving(session)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder: a script's, with its data and a link to a checkpoint."""
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.csv").write_text("1,2")
    (folder / "train.py").write_text("pass")
    (folder / "ck1").mkdir()
    (folder / "ck1" / "x").write_text("1")
    (folder / "latest").symlink_to("ck1")
    (folder / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(folder)
    return folder


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@BOTH
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (".", "working folder"),
        ("..", "working folder"),
        ("../work", "working folder"),
        ("data/..", "working folder"),
        ("/", "root of the file system"),
        ("data", "'train.csv'"),
        ("data/../data", "'train.csv'"),
        ("train.py", "not a folder"),
        ("latest", "link"),
        ("dangling", "link"),
    ],
)
def test_what_no_save_has_written_stays(
    saving: Saving, work: Path, save: Act, name: str, rule: str
) -> None:
    before = tree(work.parent)

    with pytest.raises(FolderNameError, match=rule):
        save(saving, name)

    assert tree(work.parent) == before
    assert Path.cwd() == work


@BOTH
@pytest.mark.parametrize("former", [None, _checkpoint, _export])
def test_a_checkpoint_an_export_and_an_empty_folder_make_way(
    saving: Saving, tmp_path: Path, save: Act, former: Act | None
) -> None:
    folder = tmp_path / "ck"
    if former is None:
        folder.mkdir()
    else:
        former(saving, folder)

    save(saving, folder)

    kind = "paramfleet-checkpoint" if save is _checkpoint else "paramfleet-export"
    assert json.loads((folder / MANIFEST).read_text())["format"] == kind
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]


@BOTH
@pytest.mark.parametrize("kind", ["file", "folder", "link", "manifest"])
def test_a_checkpoint_with_anything_else_in_it_stays(
    saving: Saving, tmp_path: Path, save: Act, kind: str
) -> None:
    folder = tmp_path / "ck"
    save(saving, folder)
    stranger = folder / "notes.txt"
    if kind == "file":
        stranger.write_text("mine")
    elif kind == "folder":
        stranger.mkdir()
    elif kind == "link":
        stranger = next(path for path in folder.glob("*.safetensors"))
        stranger.unlink()
        stranger.symlink_to(tmp_path)
    else:
        stranger = folder / MANIFEST
        stranger.write_text('{"format": "another"}')
    before = tree(tmp_path)

    with pytest.raises(FolderNameError, match=stranger.name) as caught:
        save(saving, folder)

    assert tree(tmp_path) == before
    assert str(folder) in str(caught.value)
    assert "choose another folder" in str(caught.value)


@pytest.mark.parametrize("content", ["[", "[" * 100_000, "[]", "{}", '{"format": []}', "\xff"])
def test_a_manifest_that_cannot_be_read_names_nothing(
    saving: Saving, tmp_path: Path, content: str
) -> None:
    (tmp_path / MANIFEST).write_bytes(content.encode("latin-1"))

    with pytest.raises(FolderNameError, match=MANIFEST):
        saving.save_persistables(tmp_path)


def test_a_pipe_of_the_manifest_s_name_is_refused_at_once(
    saving: Saving, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / MANIFEST)

    with pytest.raises(FolderNameError, match=MANIFEST):
        saving.save_persistables(tmp_path)


def test_a_file_that_comes_while_the_save_is_written_is_kept(
    saving: Saving, tmp_path: Path
) -> None:
    folder, temporary = tmp_path / "ck", tmp_path / "new"
    saving.save_persistables(folder)
    saving.save_persistables(temporary)
    (folder / "notes.txt").write_text("mine")

    with pytest.raises(FolderNameError, match=r"notes\.txt"):
        whole_folders.give_name(temporary, folder)

    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_former_checkpoint_is_replaced_with_or_without_the_system_s_exchange(
    saving: Saving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(whole_folders, "_renameat2", None)
    saving.save_persistables(tmp_path / "ck")
    former = (tmp_path / "ck").stat().st_ino

    saving.save_persistables(tmp_path / "ck")

    assert (tmp_path / "ck").stat().st_ino != former
    assert read_manifest(tmp_path / "ck").tables
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]


def test_what_a_killed_save_left_is_removed_a_day_later(saving: Saving, tmp_path: Path) -> None:
    names = [
        ".ck.0123abcd.partial", ".ck.1123abcd.partial", ".ck.2123abcd.partial",
        ".other.0123abcd.partial", ".ck.mine.partial",
    ]  # fmt: skip
    two_days_ago = time.time() - 2 * 86_400  # noqa: TID251 - what the file system counts
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("half")
        os.utime(tmp_path / name / "part", (two_days_ago, two_days_ago))
        os.utime(tmp_path / name, (two_days_ago, two_days_ago))
    os.utime(tmp_path / names[1])
    os.utime(tmp_path / names[2] / "part")

    saving.save_persistables(tmp_path / "ck")

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], "ck"])


def test_an_old_folder_that_only_looks_like_a_checkpoint_is_not_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = tmp_path / "000000-step-7"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    (mine / "manifest.json").write_text("{}")
    clock, session = FakeClock(), Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(torch.nn.Sequential(fleet.nn.Embedding(9, 2, name="o")))
    strategy = DistributedStrategy()
    strategy.checkpoint_configs = {"every_s": 1, "keep": 1, "dirname": str(tmp_path)}
    session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0), strategy)
    checkpoints = PeriodicCheckpoints(session, Saving(session, clock), clock)

    for _ in range(3):
        clock.jump(2.0)
        checkpoints.look()

    assert (mine / "thesis.tex").read_text() == "mine"
    assert "worker.checkpoint_not_removed" in caplog.text
