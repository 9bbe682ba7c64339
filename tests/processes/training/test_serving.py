"""An exported model answers as the job did, whatever the job's mode and number of servers."""

from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_tiny.py"
PROBE = torch.arange(100, 400).reshape(-1, 3)
"""As in the script: ids below 200 are trained."""


class Tiny(torch.nn.Module):
    """The script's model."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = fleet.nn.EmbeddingBag(0, 1, mode="sum")
        self.deep = fleet.nn.Embedding(0, 4)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        deep = self.mlp(self.deep(ids).flatten(1))
        logits: torch.Tensor = (deep + self.wide(ids)).squeeze(1)
        return logits


def far(folder: Path, predictions: list[float], **options: Any) -> float:
    served = fleet.serving.load(folder, Tiny(), **options)
    with torch.no_grad():
        return float((served(PROBE) - torch.tensor(predictions)).abs().max())


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_predictions_for_known_and_unknown_ids_are_the_job_s(
    jobs: Any, mode: str, storage: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    args = ["--mode", mode, "--storage", storage, "--steps", "12", "--inference", str(folder)]

    results = jobs.run(SCRIPT, *args, workers=2 if mode != "async" else 1).results

    for result in results:
        assert far(folder, result["predictions"]) <= 1e-6
        assert far(folder, result["predictions"], unknown="zeros") > 1e-3


def test_exports_of_one_training_are_equal_on_any_number_of_servers(
    jobs: Any, tmp_path: Path
) -> None:
    alone = jobs.local(SCRIPT, "--steps", "12", "--inference", str(tmp_path / "0"))
    args = ["--mode", "sync", "--steps", "12", "--inference"]

    for servers in (1, 3):
        folder = tmp_path / str(servers)
        result = jobs.run(SCRIPT, *args, str(folder), servers=servers).results[0]

        assert far(folder, result["predictions"]) <= 1e-6
        assert far(folder, alone["predictions"]) <= 1e-5
    assert far(tmp_path / "0", alone["predictions"]) <= 1e-6
    served = [fleet.serving.load(tmp_path / name, Tiny()) for name in ("1", "3")]
    with torch.no_grad():
        assert torch.allclose(served[0](PROBE), served[1](PROBE), rtol=0, atol=1e-6)
