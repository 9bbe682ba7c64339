"""Tables that Paddle 3.0.0 trained and saved predict here as they did there, and train on.

``benchmarks/paddle_table.py`` has Paddle write the files beside this one.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import CtrAccessor, SparseRule
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_worker.app.checkpoints.foreign import ForeignTable, PaddleText
from paramfleet_worker.app.checkpoints.importing import import_table

SAVED = Path(__file__).parent / "paddle_saved"
M = 4
RULES = {
    "SparseAdaGradSGDRule": SparseRule(
        "SparseAdaGradSGDRule", learning_rate=0.05, initial_range=0.0
    ),
    "SparseAdamSGDRule": SparseRule("SparseAdamSGDRule", learning_rate=0.01, initial_range=0.0),
}


class Clicks(torch.nn.Module):
    """As ``benchmarks/paddle_side/saved_table.py`` has it."""

    def __init__(self, found: dict[str, Any], *, counts: bool) -> None:
        super().__init__()
        self.cvm = found["accessor"] == "CtrCommonAccessor"
        accessor = None
        if counts:
            rule = RULES[found["rule"]]
            accessor = CtrAccessor(embedx_threshold=6, cvm=self.cvm, embed=rule, embedx=rule)
        self.counts = counts
        dim = 1 + M + 2 * self.cvm
        self.rows = fleet.nn.Embedding(0, dim, name="rows", accessor=accessor)
        self.out = torch.nn.Linear(3 * dim, 1)
        with torch.no_grad():
            self.out.weight.copy_(torch.tensor(found["weight"])[None])
            self.out.bias.copy_(torch.tensor(found["bias"]))

    def forward(self, ids: torch.Tensor, click: torch.Tensor) -> torch.Tensor:
        if self.cvm:
            cvm = torch.stack([torch.ones(len(click)), click], dim=1)
            slots = [
                fleet.nn.continuous_value_model(self.rows(ids[:, slot]), cvm)
                for slot in range(ids.shape[1])
            ]
            rows = torch.cat(slots, dim=1)
        else:
            rows = self.rows(ids, click=click) if self.counts else self.rows(ids)
            rows = rows.flatten(1)
        logits: torch.Tensor = self.out(rows).squeeze(1)
        return logits


class Alone:
    """One process that trains the model."""

    def __init__(self, found: dict[str, Any], *, counts: bool) -> None:
        self.session = Session()
        self.session.init(RoleMaker(distributed=False))
        self.found = found
        self.model = self.session.distributed_model(Clicks(found, counts=counts))
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = self.session.distributed_optimizer(sgd)
        self.session.init_worker()
        self.saving = Saving(self.session)

    def take(self, source: ForeignTable, folder: Path) -> None:
        """Go on with a table that was saved elsewhere."""
        self.saving.save_persistables(folder / "first")
        into = folder / "first"
        import_table(source, into=into, table="rows", output=folder / "new")
        self.saving.load_model(folder / "new")

    def logits(self) -> NDArray[np.float32]:
        self.model.eval()
        ids = torch.tensor(self.found["ids"])
        found: NDArray[np.float32] = self.model(ids, torch.zeros(len(ids))).detach().numpy()
        self.model.train()
        return found

    def train(self) -> list[float]:
        """Take the steps that Paddle took after it had saved; return their losses."""
        losses = []
        for batch in self.found["more"]:
            click = torch.tensor(batch["click"])
            logits = self.model(torch.tensor(batch["ids"]), click)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, click)
            losses.append(loss.item())
            self.optimizer.minimize(loss)
        return losses


def saved(name: str) -> tuple[dict[str, Any], ForeignTable]:
    found = json.loads((SAVED / name / "model.json").read_text())
    text = PaddleText(found["accessor"], found["rule"])
    return found, ForeignTable(SAVED / name / "000", "paddle", text)


@pytest.mark.parametrize("name", ["sparse", "counted"])
def test_a_table_of_paddle_predicts_and_trains_here_as_there(tmp_path: Path, name: str) -> None:
    found, source = saved(name)
    alone = Alone(found, counts=True)

    alone.take(source, tmp_path)

    assert np.abs(alone.logits() - found["logits"]).max() <= 1e-6
    alone.train()
    assert np.abs(np.subtract(found["later"], found["logits"])).max() > 1e-3
    assert np.abs(alone.logits() - found["later"]).max() <= 1e-5


def test_a_plain_table_takes_its_rows_and_begins_anew_with_its_optimizer(
    tmp_path: Path,
) -> None:
    found, source = saved("sparse")
    alone = Alone(found, counts=False)

    alone.take(source, tmp_path)

    assert np.abs(alone.logits() - found["logits"]).max() <= 1e-6
    first = [sum(alone.train()) for _ in range(5)]
    assert first[-1] < first[0]
