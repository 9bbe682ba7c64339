"""A model folder as small as one can be, and data for it by days."""

from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from safetensors.numpy import load_file

from paramfleet.runner.__main__ import main

MODEL = """\
import torch
import paramfleet as fleet
from paramfleet import runner


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ids = fleet.nn.EmbeddingBag(0, 1, mode="sum", initializer=fleet.nn.constant(0))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        return self.ids(ids).squeeze(1) + self.bias


class Model(runner.Model[runner.HyperParameters]):
    def create_model(self):
        return Net()

    def create_slots(self):
        return [fleet.data.Slot("label"), fleet.data.Slot("ids", width=2)]

    def create_feeds(self, batch):
        label, ids = batch
        return runner.Feeds((ids,), label.squeeze(1).float())

    def create_loss(self, outputs, labels):
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels)

    def create_metrics(self):
        return {"auc": runner.Auc(), "mean": runner.Mean()}

    def update_metrics(self, metrics, outputs, labels):
        metrics["auc"].update(outputs.sigmoid(), labels)
        metrics["mean"].update(outputs.sigmoid())
"""
COUNTING = MODEL.replace(
    'fleet.nn.EmbeddingBag(0, 1, mode="sum", initializer=fleet.nn.constant(0))',
    "fleet.nn.EmbeddingBag("
    '0, 1, mode="sum", accessor=fleet.nn.CtrAccessor(delete_threshold=1.5))',
)
"""With rows that count their shows, fade and go."""

CONFIG = """\
runner:
  train_data_dir: data
  days: {20260101..20260102}
  split_interval: 720
  checkpoint_per_pass: 1
  save_delta_frequency: 1
  save_first_base: true
  reader_type: InMemoryDataset
  train_batch_size: 4
  print_interval: 2
  model_save_path: saved
  sync_mode: sync
hyper_parameters:
  optimizer:
    class: Adam
    learning_rate: 0.1
"""


def write_pass(folder: Path, *, seed: int, rows: int = 23, files: int = 3) -> None:
    """Write a folder of text by slots: the first id of a sample says its label most often."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(files):
        lines = []
        for _ in range(rows // files + (number < rows % files)):
            kind = int(random.integers(0, 2))
            label = kind if random.random() < 0.9 else 1 - kind
            lines.append(f"1 {label} 2 {kind + 1} {10 + int(random.integers(0, 9))}\n")
        (folder / f"part-{number}").write_text("".join(lines))


def run(folder: Path, *options: str) -> Result:
    """Train it in this process."""
    words = [f"-o{option}" for option in options]
    return CliRunner().invoke(main, ["train", "-m", str(folder / "config.yaml"), *words])


def write_stream(root: Path) -> Path:
    """Write a model folder with two days of two passes; the last pass has one more sample."""
    made = root / "toys" / "stream"
    for number, name in enumerate(("20260101/0000", "20260101/1200", "20260102/0000")):
        write_pass(made / "data" / name, seed=number)
    write_pass(made / "data" / "20260102/1200", seed=9, rows=24)
    (made / "model.py").write_text(MODEL)
    (made / "config.yaml").write_text(CONFIG)
    return made


def tables_of(checkpoint: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a checkpoint's tables, rows by their ids."""
    found = {}
    for path in sorted(checkpoint.glob("table*.safetensors")):
        arrays = load_file(path)
        order = np.argsort(arrays["ids"]) if "ids" in arrays else slice(None)
        for name, array in arrays.items():
            rows = "ids" in arrays and len(array) == len(arrays["ids"])
            found[f"{path.name}/{name}"] = array[order] if rows else array
    return found
