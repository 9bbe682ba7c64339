"""The model folder of a job that is followed, and made-up days for it.

Two tables: all rows of ``words`` stay, those of ``users`` count their shows, fade and go.
"""

from pathlib import Path

import numpy as np

__all__ = ["NUM_IDS", "UNKNOWN", "write_model", "write_pass"]

NUM_IDS = 3000
UNKNOWN = 0.25
"""What an id of ``words`` without a row reads; ``users`` read zeros."""

MODEL = f"""\
import torch
import paramfleet as fleet
from paramfleet import runner

FIRST = fleet.nn.constant({UNKNOWN})


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = fleet.nn.Embedding(0, 4, initializer=FIRST, name="words")
        accessor = fleet.nn.CtrAccessor(delete_threshold=1.5)
        options = dict(initializer=FIRST, name="users", accessor=accessor)
        self.users = fleet.nn.Embedding(0, 2, **options)
        self.tower = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        )

    def forward(self, words, users):
        rows = torch.cat([self.words(words), self.users(users)], -1)
        return self.tower(rows.flatten(1)).squeeze(1)


class Model(runner.Model[runner.HyperParameters]):
    def create_model(self):
        return Net()

    def create_slots(self):
        names = ("words", "users")
        return [fleet.data.Slot("label"), *(fleet.data.Slot(name, width=1) for name in names)]

    def create_feeds(self, batch):
        label, words, users = batch
        return runner.Feeds((words, users), label.squeeze(1).float())

    def create_loss(self, outputs, labels):
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels)

    def create_metrics(self):
        return {{"auc": runner.Auc()}}

    def update_metrics(self, metrics, outputs, labels):
        metrics["auc"].update(outputs.sigmoid(), labels)
"""

CONFIG = """\
runner:
  train_data_dir: data
  days: {days}
  split_interval: 720
  checkpoint_per_pass: 1
  save_delta_frequency: 1
  save_first_base: true
  reader_type: InMemoryDataset
  train_batch_size: 50
  print_interval: 1
  data_donefile: done
  data_sleep_second: 0.05
  model_save_path: saved
  sync_mode: {mode}
hyper_parameters:
  optimizer:
    class: Adagrad
    learning_rate: 0.1
"""


def write_model(folder: Path, *, days: int, mode: str) -> None:
    """Write the model and its configuration; a day has two passes."""
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    named = f"[20260101..202601{days:02d}]"
    (folder / "config.yaml").write_text(CONFIG.format(days=named, mode=mode))


def write_pass(folder: Path, day: int, number: int, *, samples: int) -> None:
    """Write all data of a pass, number 0 or 1 of a day; ids of later days are others."""
    random = np.random.default_rng((day, number))
    place = folder / "data" / f"202601{day:02d}" / ("0000", "1200")[number]
    place.mkdir(parents=True)
    newest = min(NUM_IDS, 500 + 100 * day)
    for part in range(2):
        words = random.integers(1, newest, samples // 2)
        users = newest - 1 - (400 * random.random(samples // 2) ** 3).astype(int)
        labels = (random.random(samples // 2) < 0.2 + 0.6 * (words % 2)).astype(int)
        each = zip(labels.tolist(), words.tolist(), users.tolist(), strict=True)
        lines = [f"1 {label} 1 {word} 1 {user}\n" for label, word, user in each]
        (place / f"part-{part}").write_text("".join(lines))
    (place / "done").write_text("")
