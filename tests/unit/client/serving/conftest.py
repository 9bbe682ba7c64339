"""A model with both kinds of modules, trained alone for a few steps."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session

TRAINED, UNKNOWN = range(60), range(60, 90)


class Clicks(torch.nn.Module):
    """Ids [B, 3] to a score each."""

    def __init__(self, mode: str = "sum", storage: Any = "float32") -> None:
        super().__init__()
        self.wide = fleet.nn.EmbeddingBag(
            0, 4, mode=mode, padding_idx=0, initializer=fleet.nn.uniform(-0.5, 0.7)
        )
        self.deep = fleet.nn.Embedding(0, 4, padding_idx=0, storage=storage, seed=3)
        self.tower = torch.nn.Sequential(
            torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        features = torch.cat([self.deep(ids).flatten(1), self.wide(ids)], 1)
        scores: torch.Tensor = self.tower(features).squeeze(1)
        return scores


def train(model: torch.nn.Module, ids: torch.Tensor) -> Saving:
    """Train a model for some steps; return what saves it."""
    session = Session()
    session.init(RoleMaker(distributed=False))
    session.distributed_model(model)
    optimizer = session.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
    for _ in range(3):
        found = model(ids)
        optimizer.minimize(found.pow(2).sum())
    model.eval()
    return Saving(session)


class Export:
    """A trained model and its folder."""

    def __init__(self, path: Path, model: torch.nn.Module) -> None:
        self.path = path
        self.model = model
        self.saving = train(model, torch.tensor(TRAINED).reshape(-1, 3))
        self.saving.save_inference_model(path)
        self.probe = torch.tensor([*TRAINED, *UNKNOWN, 0, 5, 70]).reshape(-1, 3)

    @property
    def expected(self) -> torch.Tensor:
        """What the job's own model says of known and unknown ids."""
        with torch.no_grad():
            return self.model(self.probe)  # type: ignore[no-any-return]  # a module's

    def predicted(self, served: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return served(self.probe)  # type: ignore[no-any-return]  # a module's


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Export:
    return Export(tmp_path_factory.mktemp("original") / "export", Clicks())


@pytest.fixture
def folder(original: Export, tmp_path: Path) -> Path:
    """Return an export that a test may harm."""
    return Path(shutil.copytree(original.path, tmp_path / "export"))


@pytest.fixture
def make_model() -> Any:
    return Clicks


@pytest.fixture
def exported(tmp_path: Path) -> Any:
    """Return a function that trains and exports a model, ``Clicks`` without one."""

    def make(model: torch.nn.Module | None = None, name: str = "export") -> Export:
        return Export(tmp_path / name, model or Clicks())

    return make
