"""Train a model of another library by the library's own ``fit``; print its AUC as JSON.

Only ``torch.nn.Embedding`` is replaced, and the optimizer that the library makes is given to
``fleet.distributed_optimizer``. With ``--rows torch`` neither is done: that is the library by
itself. Initializers, regularizers, weight decay and all options are the library's defaults.
Both begin with the same values, and examples come in the same order everywhere, so that the
figures can be compared.
"""
# ruff: noqa: PLC0415 - a model imports the library that it is of, and no other

import argparse
import contextlib
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import paramfleet as fleet

Columns = dict[str, NDArray[Any]]

USERS, ITEMS, KINDS, PLACES, LENGTH = 400, 300, 12, 6, 6
"""Sizes of the vocabularies, without id 0, and how many earlier items an example has."""


@dataclass
class Clicks:
    """Columns by name: ``hist_item`` [n, LENGTH] with 0 as padding, all others [n]."""

    train: Columns
    valid: Columns


def make_clicks(*, rows: int, seed: int) -> Clicks:
    """Return clicks that users' tastes, items' kinds and earlier items decide in part."""
    random = np.random.default_rng(seed)
    kinds = random.integers(1, KINDS + 1, ITEMS + 1)
    tastes = random.normal(size=(USERS + 1, KINDS + 1))
    moods = random.normal(size=USERS + 1)
    appeal = random.normal(size=ITEMS + 1)
    user = random.integers(1, USERS + 1, rows)
    item = 1 + (ITEMS * random.random(rows) ** 2).astype(np.int64)
    place = random.integers(1, PLACES + 1, rows)
    price = random.random(rows)
    length = random.integers(1, LENGTH + 1, rows)
    earlier = 1 + (ITEMS * random.random((rows, LENGTH)) ** 2).astype(np.int64)
    earlier[np.arange(LENGTH) >= length[:, None]] = 0
    alike = ((kinds[earlier] == kinds[item][:, None]) & (earlier > 0)).any(1)
    score = 0.8 * tastes[user, kinds[item]] + moods[user] + appeal[item] + 2.0 * alike
    score -= 2.0 * price + 0.3 * (place % 3) + 0.3
    clicked = random.random(rows) < 1 / (1 + np.exp(-score))
    columns = {
        "user": user, "item": item, "kind": kinds[item], "place": place, "price": price,
        "hist_item": earlier, "length": length, "clicked": clicked.astype(np.float64),
    }  # fmt: skip
    cut = rows * 5 // 6
    return Clicks(
        {name: column[:cut] for name, column in columns.items()},
        {name: column[cut:] for name, column in columns.items()},
    )


@dataclass
class Run:
    """What a library's function needs of this process, and what it found out."""

    words: argparse.Namespace
    folder: Path
    ours: bool
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return how many workers share each batch."""
        return fleet.worker_num() if self.ours else 1

    def mine(self, columns: Columns) -> Columns:
        """Return this worker's examples, so that workers' batches together are one's batch."""
        rank = fleet.worker_index() if self.ours else 0
        return {name: column[rank :: self.size] for name, column in columns.items()}

    def build(self, make: Callable[[], Any]) -> Any:
        """Return the library's model; with our rows where ``--rows`` says so.

        Both have the values that torch's modules begin with.
        """
        torch.manual_seed(self.words.seed)
        model = make()
        if self.ours:
            begin = {name: value.clone() for name, value in model.state_dict().items()}
            with replaced():
                model = make()
            fleet.distributed_model(model)
            model.load_state_dict(begin)
        torch.manual_seed(self.words.seed)  # what dropout draws from
        return model

    def distribute(self, optimizer: torch.optim.Optimizer, *, sums: bool = False) -> Any:
        """Return the optimizer to give to the library."""
        if not self.ours:
            return optimizer
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = self.words.mode != "sync"
        if self.words.mode == "geo":
            strategy.a_sync_configs = {"k_steps": 4}
        if self.words.mode == "sync":
            strategy.sync_batch_norm = True
            if sums:
                strategy.loss_reduction = "sum"
        return fleet.distributed_optimizer(optimizer, strategy)


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Let ``torch.nn.Embedding`` be ours."""
    theirs = torch.nn.Embedding
    torch.nn.Embedding = fleet.nn.Embedding  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        torch.nn.Embedding = theirs  # type: ignore[misc]


def ask_nobody() -> None:
    """Keep deepctr-torch from asking the package index for a newer version when imported."""
    utils = types.ModuleType("deepctr_torch.utils")
    utils.check_version = lambda version: None  # type: ignore[attr-defined]
    sys.modules["deepctr_torch.utils"] = utils


def deepctr(run: Run, model: Any, names: list[str], clicks: Clicks) -> Any:
    """Fit a model of deepctr-torch, with validation after each epoch."""

    def inputs(columns: Columns) -> dict[str, NDArray[Any]]:
        return {name: columns[name] for name in names}

    optimizer = torch.optim.Adam(model.parameters())  # what compile("adam") makes
    model.compile(run.distribute(optimizer, sums=True), "binary_crossentropy", metrics=["auc"])
    if run.ours:
        fleet.init_worker()
    mine = run.mine(clicks.train)
    history = model.fit(
        inputs(mine), mine["clicked"], batch_size=run.words.batch // run.size,
        epochs=run.words.epochs, verbose=0, shuffle=False,
        validation_data=(inputs(clicks.valid), clicks.valid["clicked"]),
    )  # fmt: skip
    run.made["each_epoch"] = history.history["val_auc"]
    return lambda: model.evaluate(inputs(clicks.valid), clicks.valid["clicked"])["auc"]


def deepctr_deepfm(run: Run) -> Any:
    ask_nobody()
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM

    sizes = {"user": USERS, "item": ITEMS, "kind": KINDS, "place": PLACES}
    columns = [SparseFeat(name, size + 1) for name, size in sizes.items()]
    columns += [DenseFeat("price", 1)]
    clicks = make_clicks(rows=run.words.examples, seed=run.words.seed)
    model = run.build(lambda: DeepFM(columns, columns, seed=run.words.seed))
    return deepctr(run, model, [*sizes, "price"], clicks)


def deepctr_din(run: Run) -> Any:
    ask_nobody()
    from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
    from deepctr_torch.models import DIN

    item = SparseFeat("item", ITEMS + 1, embedding_dim=8)
    earlier = SparseFeat("hist_item", ITEMS + 1, embedding_dim=8, embedding_name="item")
    columns = [
        SparseFeat("user", USERS + 1, embedding_dim=8), item,
        SparseFeat("place", PLACES + 1, embedding_dim=8), DenseFeat("price", 1),
        VarLenSparseFeat(earlier, maxlen=LENGTH, length_name="length"),
    ]  # fmt: skip
    clicks = make_clicks(rows=run.words.examples, seed=run.words.seed)
    model = run.build(lambda: DIN(columns, ["item"], seed=run.words.seed))
    names = ["user", "item", "place", "price", "hist_item", "length"]
    return deepctr(run, model, names, clicks)


def rechub(run: Run, trainer_of: Callable[..., Any], model: Any, clicks: Clicks) -> Any:
    """Fit a model of torch-rechub, with validation after each epoch."""
    from torch_rechub.utils.data import TorchDataset

    def loader(columns: Columns, batch: int) -> Any:
        inputs = {name: each for name, each in columns.items() if name != "clicked"}
        found = TorchDataset(inputs, columns["clicked"].astype(np.float32))
        return torch.utils.data.DataLoader(found, batch_size=batch)

    def optimizer_of(parameters: Any, **options: Any) -> Any:
        return run.distribute(torch.optim.Adam(parameters, **options))

    trainer = trainer_of(
        model, optimizer_fn=optimizer_of, n_epoch=run.words.epochs, model_path=str(run.folder)
    )
    if run.ours:
        fleet.init_worker()
    valid = loader(clicks.valid, 512)
    trainer.fit(loader(run.mine(clicks.train), run.words.batch // run.size), valid)
    saved = torch.load(run.folder / "model.pth", weights_only=True)  # noqa: TID251 - what the library saved
    run.made["saved"] = {name: list(value.shape) for name, value in saved.items()}
    return lambda: trainer.evaluate(model, valid)


def rechub_din(run: Run) -> Any:
    from torch_rechub.basic.features import SequenceFeature, SparseFeature
    from torch_rechub.models.ranking import DIN
    from torch_rechub.trainers import CTRTrainer

    def make() -> Any:
        features = [
            SparseFeature("user", USERS + 1, embed_dim=8),
            SparseFeature("place", PLACES + 1, embed_dim=8),
        ]
        target = [SparseFeature("item", ITEMS + 1, embed_dim=8, padding_idx=0)]
        earlier = SequenceFeature(
            "hist_item", ITEMS + 1, embed_dim=8, pooling="concat",
            shared_with="item", padding_idx=0,
        )  # fmt: skip
        return DIN(features, [earlier], target, {"dims": [64, 32]}, {"dims": [32]})

    clicks = make_clicks(rows=run.words.examples, seed=run.words.seed)
    return rechub(run, CTRTrainer, run.build(make), clicks)


def rechub_dssm(run: Run) -> Any:
    from torch_rechub.basic.features import SequenceFeature, SparseFeature
    from torch_rechub.basic.initializers import XavierNormal
    from torch_rechub.models.matching import DSSM
    from torch_rechub.trainers import MatchTrainer

    def make() -> Any:
        earlier = SequenceFeature(
            "hist_item", ITEMS + 1, embed_dim=8, initializer=XavierNormal(), pooling="mean",
            shared_with="item", padding_idx=0,
        )  # fmt: skip
        users = [
            SparseFeature("user", USERS + 1, embed_dim=8, initializer=XavierNormal()),
            earlier,
        ]
        items = [
            SparseFeature(
                "item", ITEMS + 1, embed_dim=8, initializer=XavierNormal(), padding_idx=0
            ),
            SparseFeature("kind", KINDS + 1, embed_dim=8, initializer=XavierNormal()),
        ]
        towers: dict[str, Any] = {"dims": [32]}
        return DSSM(users, items, user_params=towers, item_params=towers)

    clicks = make_clicks(rows=run.words.examples, seed=run.words.seed)
    return rechub(run, MatchTrainer, run.build(make), clicks)


def recbole_deepfm(run: Run) -> Any:
    """Fit RecBole's DeepFM to the ratings that come with it, of 943 people and 1,682 films."""
    former = {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}
    for name, kind in former.items():  # RecBole 1.2.1 reads names that NumPy 2 hasn't
        setattr(np, name, kind)
    import recbole
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.data.dataloader import TrainDataLoader
    from recbole.model.context_aware_recommender.deepfm import DeepFM
    from recbole.trainer import Trainer
    from recbole.utils import init_seed

    class OurTrainer(Trainer):  # type: ignore[misc]
        def _build_optimizer(self, **options: Any) -> Any:
            return run.distribute(super()._build_optimizer(**options))

    people = ["user_id", "age", "gender", "occupation"]
    columns = {
        "inter": ["user_id", "item_id", "rating"], "user": people,
        "item": ["item_id", "release_year"],
    }  # fmt: skip
    options = {
        "data_path": str(Path(recbole.__file__).parent / "dataset_example"),
        "load_col": columns,
        "threshold": {"rating": 4}, "train_neg_sample_args": None,
        "eval_args": {"split": {"RS": [0.8, 0.1, 0.1]}, "group_by": "none", "mode": "labeled"},
        "metrics": ["AUC"], "valid_metric": "AUC", "metric_decimal_place": 7,
        "epochs": run.words.epochs, "train_batch_size": run.words.batch // run.size,
        "checkpoint_dir": str(run.folder), "show_progress": False, "seed": run.words.seed,
    }  # fmt: skip
    config = Config(model="DeepFM", dataset="ml-100k", config_dict=options)
    init_seed(config["seed"], config["reproducibility"])
    train, valid, test = data_preparation(config, create_dataset(config))
    rank = fleet.worker_index() if run.ours else 0
    part = train._dataset.copy(train._dataset.inter_feat[rank :: run.size])
    mine = TrainDataLoader(config, part, train._sampler, shuffle=False)
    model = run.build(lambda: DeepFM(config, train._dataset))
    trainer = OurTrainer(config, model)
    if run.ours:
        fleet.init_worker()
    trainer.fit(mine, valid)  # saves the model when it is better than before
    run.made["parameters"] = sum(p.numel() for p in model.parameters())
    return lambda: trainer.evaluate(test, load_best_model=False)["auc"]


@dataclass(frozen=True)
class Training:
    """How a model is trained, where the words don't say otherwise."""

    fit: Callable[[Run], Callable[[], float]]
    examples: int = 24_000
    batch: int = 256
    epochs: int = 3


MODELS = {
    "deepctr_deepfm": Training(deepctr_deepfm),
    "deepctr_din": Training(deepctr_din),
    "rechub_din": Training(rechub_din, examples=48_000, batch=512, epochs=2),
    "rechub_dssm": Training(rechub_dssm, examples=48_000, batch=512, epochs=8),
    "recbole_deepfm": Training(recbole_deepfm, batch=2048, epochs=8),
}


def words() -> argparse.Namespace:
    """Return the words of the command line, with what a model's training is by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--rows", default="fleet", help="whose: fleet, torch, or torch,fleet")
    parser.add_argument("--mode", choices=("sync", "async", "geo"), default="sync")
    parser.add_argument("--seed", type=int, default=1)
    for name in ("examples", "batch", "epochs"):
        parser.add_argument(f"--{name}", type=int)
    said = parser.parse_args()
    for name in ("examples", "batch", "epochs"):
        if getattr(said, name) is None:
            setattr(said, name, getattr(MODELS[said.model], name))
    return said


def train(said: argparse.Namespace, rows: str) -> dict[str, Any]:
    """Train a model, in a folder of its own, and evaluate it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run = Run(said, Path(folder), ours=rows == "fleet")
        start = time.perf_counter()
        evaluate = MODELS[said.model].fit(run)
        if run.ours:
            fleet.finish_training()
        seconds = time.perf_counter() - start
        return {"auc": float(evaluate()), "seconds": round(seconds, 2), **run.made}


def main() -> None:
    """Train as the command line says; print what came of it."""
    said = words()
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    found = {rows: train(said, rows) for rows in said.rows.split(",")}
    fleet.stop_worker()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
