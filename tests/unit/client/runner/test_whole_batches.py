"""A reader may make whole batches: the runner takes them as they are, epoch after epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.runner.batches import open_batches
from paramfleet.runner.config.configuration import read_config
from paramfleet.runner.config.errors import ConfigError, ModelFolderError
from paramfleet.runner.folders import load_model_class
from paramfleet.runner.models.model import Feeds, Model

WORD2VEC = Path(__file__).parents[4] / "models" / "recall" / "word2vec" / "config.yaml"


def model(text: Path, *options: str) -> Model[Any]:
    raw = read_config(WORD2VEC, [f"runner.train_data_dir={text}", *options])
    cls = load_model_class(raw)
    return cls(raw.read_as(cls.parameters))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    fleet.init(fleet.PaddleCloudRoleMaker(environment={}))
    (tmp_path / "text").write_text("a b c d e f g " * 60, encoding="utf-8")
    return tmp_path / "text"


def batches(made: Model[Any], text: Path) -> Any:
    return open_batches(made, [str(text)], test=False)


def test_batches_of_an_epoch_are_drawn_anew_and_have_all_words(text: Path) -> None:
    made = model(text, "runner.train_batch_size=100", "hyper_parameters.sample=0")
    opened = batches(made, text)

    epochs = [[made.create_feeds(batch) for batch in opened] for _ in range(2)]

    for feeds in epochs:
        assert [each.size for each in feeds] == [100, 100, 100, 100, 20]
        assert [len(each.labels) for each in feeds] == [100, 100, 100, 100, 20]
    first, second = (feeds[0].inputs for feeds in epochs)
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])  # its negatives


def test_feeds_count_their_labels_unless_they_say_more() -> None:
    assert Feeds((), torch.zeros(3)).size == 3
    assert Feeds((), torch.zeros(3), 7).size == 7


def test_batches_that_a_reader_makes_are_not_shared_or_made_elsewhere(text: Path) -> None:
    shared = model(text, "runner.split_batches=true")
    with pytest.raises(ConfigError, match="split_batches = true: must be false: workers share"):
        next(iter(batches(shared, text)))

    elsewhere = model(text, "runner.reader_type=DataLoader")
    with pytest.raises(ModelFolderError, match="reader_type must be RecDataset"):
        batches(elsewhere, text)
