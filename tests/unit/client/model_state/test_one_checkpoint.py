"""A load takes all of one checkpoint, or refuses: never parts of two."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.model_state.one_checkpoint import LoadedFrom, NotResumedError, folder_to_load
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import ManifestError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.testing.clock import FakeClock


class Opens:
    """Acts right before the n-th open of a file of one name."""

    def __init__(self) -> None:
        self._name, self._left = "", 0
        self._act: Callable[[], None] = lambda: None
        sys.addaudithook(self._look)

    def before(self, name: str, number: int, act: Callable[[], None]) -> None:
        self._name, self._left, self._act = name, number, act

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self._left and str(arguments[0]).endswith(f"/{self._name}"):
            self._left -= 1
            if not self._left:
                self._act()


@pytest.fixture
def opens() -> Iterator[Opens]:
    opens = Opens()
    yield opens
    opens.before("", 0, lambda: None)  # the interpreter keeps its hooks


class Trained:
    """A model with buffers, and checkpoints A and B of it: after one step and after two."""

    def __init__(self, folder: Path, names: str = "AB") -> None:
        session = Session()
        session.init(RoleMaker(distributed=False))
        rows = fleet.nn.Embedding(9, 2, name="one")
        layers = torch.nn.Sequential(rows, torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
        self.model = session.distributed_model(layers)
        inner = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.optimizer = session.distributed_optimizer(inner)
        self.saving = Saving(session, FakeClock())
        self.states = {}
        for name in names:
            self.optimizer.minimize(self.model(torch.arange(9)).pow(2).sum())
            self.saving.save_persistables(folder / name)
            self.states[name] = self.state()

    def state(self) -> list[Any]:
        tensors = [each.tolist() for each in self.model.state_dict().values()]
        return [*tensors, self.optimizer.num_steps]


@pytest.mark.parametrize(
    ("name", "number"),
    [("manifest.json", 2), ("manifest.json", 3), ("module.safetensors", 1),
     ("table000.safetensors", 1)],
)  # fmt: skip
def test_a_link_that_moves_during_a_load_leads_to_one_checkpoint(
    tmp_path: Path, opens: Opens, name: str, number: int
) -> None:
    trained, latest = Trained(tmp_path), tmp_path / "latest"
    latest.symlink_to("A")

    def move() -> None:
        latest.unlink()
        latest.symlink_to("B")

    opens.before(name, number, move)
    trained.saving.load_model(latest)

    assert trained.state() == trained.states["A"]


@pytest.mark.parametrize("name", ["module.safetensors", "table000.safetensors"])
def test_a_folder_that_is_replaced_during_a_load_is_refused_and_nothing_changed(
    tmp_path: Path, opens: Opens, name: str
) -> None:
    trained = Trained(tmp_path)

    def replace() -> None:
        (tmp_path / "A").rename(tmp_path / "old")
        (tmp_path / "B").rename(tmp_path / "A")

    opens.before(name, 1, replace)
    with pytest.raises(ManifestError, match=r"replaced .* load it again"):
        trained.saving.load_model(tmp_path / "A")

    assert trained.state() == trained.states["B"]
    trained.saving.load_model(tmp_path / "A")
    assert trained.state() == trained.states["B"]


def load_rows(trained: Trained, folder: Path) -> None:
    del trained
    fleet.load_rows(folder, "one")


def load_model(trained: Trained, folder: Path) -> None:
    trained.saving.load_model(folder)


@pytest.mark.parametrize("load", [load_rows, load_model])
def test_a_folder_that_is_replaced_and_saved_again_as_it_was_is_refused_as_such(
    tmp_path: Path, opens: Opens, load: Callable[[Trained, Path], None]
) -> None:
    trained = Trained(tmp_path, "A")
    trained.saving.save_persistables(tmp_path / "again")  # of the same state and moment
    trained.optimizer.minimize(trained.model(torch.arange(9)).pow(2).sum())
    trained.saving.save_persistables(tmp_path / "B")

    def replace(by: str) -> None:
        (tmp_path / "A").rename(tmp_path / f"before-{by}")
        (tmp_path / by).rename(tmp_path / "A")

    def replace_twice() -> None:
        replace("B")
        opens.before("manifest.json", 1, lambda: replace("again"))

    opens.before("table000.safetensors", 1, replace_twice)
    with pytest.raises(ManifestError, match=r"replaced .* load it again"):
        load(trained, tmp_path / "A")


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")

    with pytest.raises(ManifestError, match="too many links"):
        folder_to_load(tmp_path / "one")


def declared(folder: str, digest: str) -> Message:
    return Message(fields={"folder": folder, "manifest": digest})


def test_pservers_that_loaded_different_checkpoints_are_refused() -> None:
    with pytest.raises(ManifestError, match="different checkpoints"):
        LoadedFrom.of([declared("/ck", "aa"), declared("/ck", "bb")])

    both = LoadedFrom.of([declared("/mnt/ck", "aa"), declared("/ck", "aa")])
    assert both == LoadedFrom("/ck", "aa")
    assert LoadedFrom.of([declared("", "")]) == LoadedFrom()


def test_a_job_does_not_start_anew_where_it_is_to_continue() -> None:
    with pytest.raises(NotResumedError, match="continue from /ck, and its pservers have"):
        LoadedFrom().check_resumed("/ck")

    LoadedFrom("/ck", "aa").check_resumed("/mnt/ck")
    LoadedFrom().check_resumed("")
