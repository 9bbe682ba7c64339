"""rank/dnn on Criteo's sample, alone and in every mode: how far apart the test AUCs are.

    python benchmarks/model_modes.py --data_dir=../shared/data --workers=2 --seeds=1,2,3

The first 50,000 rows train, the last 10,000 are scored; with ``--validation``, by which
settings are chosen, the first 40,000 and the 10,000 behind them. The workers of a job share
the batches, so that every mode takes each row once. The last line is JSON.
"""

import gzip
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from paramfleet_shared.system.processes.keeping import tied

CONFIG = Path(__file__).parents[1] / "models" / "rank" / "dnn" / "config.yaml"
SAMPLE = Path("medium") / "criteo1tb_train_60k.tsv.gz"
NUM_TRAIN_ROWS, NUM_TEST_ROWS = 50_000, 10_000
RATE_KEY = "hyper_parameters.optimizer.learning_rate"
SMALL_SAMPLE = {"runner.train_batch_size": "64", RATE_KEY: "0.0005"}
"""98 steps of PaddleRec's 512 rows would end where the AUC still climbs, and compare how far
each got. At its rate of 0.001, rounding would move sync's AUC by 5e-6 from one process's."""
MODES = ("sync", "async", "geo")


def own_keys(mode: str, workers: int) -> dict[str, str]:
    """Return the keys of one mode; ``--validation`` chose the batches and geo's step.

    In async a gradient is some steps old when it is applied, and its harm grows with how far
    they went: the steps are smaller, in rate and rows alike.

    In geo a worker's Adam steps by the learning rate, whatever the size of a gradient: the sum
    of the workers' progress would overshoot, so it is averaged. Each worker takes its share of
    one process's batch, so that it has as many steps. The mean halves what one of two workers
    learned of an id that the other didn't meet, and most ids are rare: the rate is doubled.
    """
    keys = {"runner.sync_mode": mode}
    if mode == "async":
        keys |= {"runner.train_batch_size": "16", RATE_KEY: "0.00025"}
    if mode == "geo":
        share = int(SMALL_SAMPLE["runner.train_batch_size"]) // workers
        keys["runner.train_batch_size"] = str(share)
        keys["runner.geo_step"] = "4"
        keys[RATE_KEY] = "0.001"
        keys["runner.a_sync_configs.geo_merge"] = "average"
    return keys


def split_rows(sample: Path, folder: Path, *, num_train_rows: int) -> dict[str, str]:
    """Write the rows as a file to train on and one to score; return the keys that name them."""
    with gzip.open(sample, "rt") as rows:
        for name, number in (("train", num_train_rows), ("test", NUM_TEST_ROWS)):
            chosen = itertools.islice(rows, number)
            (folder / f"{name}.tsv").write_text("".join(chosen), encoding="utf-8")
    return {
        "runner.train_data_dir": str(folder / "train.tsv"),
        "runner.test_data_dir": str(folder / "test.tsv"),
        "runner.model_save_path": "",
        "runner.print_interval": "0",
        "runner.split_batches": "true",
        **SMALL_SAMPLE,
    }


def train(command: list[str], keys: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run a command on the model; return its result."""
    options = [f"{key}={value}" for key, value in keys.items()]
    ended = subprocess.run(
        tied(
            [sys.executable, "-m", "paramfleet_worker", *command, "-m", str(CONFIG), *options]
        ),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


@click.command(context_settings={"show_default": True})
@click.option(
    "--data_dir", type=click.Path(exists=True, path_type=Path), envvar="PARAMFLEET_DATA"
)
@click.option("--workers", type=click.IntRange(min=1), default=2)
@click.option("--servers", type=click.IntRange(min=1), default=1)
@click.option("--seeds", default="1,2,3", help="One run of each mode for each.")
@click.option(
    "--validation", is_flag=True, help="Score the last 10,000 rows of those for training."
)
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
def main(
    data_dir: Path | None,
    workers: int,
    servers: int,
    seeds: str,
    validation: bool,  # noqa: FBT001 - a flag of click's
    options: tuple[str, ...],
) -> None:
    """Train rank/dnn alone and in every mode, and compare the test AUCs.

    Raises:
        UsageError: if nobody says where the sample is.
    """
    if data_dir is None:
        message = "say where the sample is: --data_dir or PARAMFLEET_DATA"
        raise click.UsageError(message)
    more = dict(option.split("=", 1) for option in options)
    scores: dict[str, list[float]] = {mode: [] for mode in ("local", *MODES)}
    job = ["launch", f"--worker_num={workers}", f"--server_num={servers}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_rows = NUM_TRAIN_ROWS - NUM_TEST_ROWS * validation
        shared = {
            **split_rows(data_dir / SAMPLE, folder, num_train_rows=num_rows),
            **more,
        }
        for seed in seeds.split(","):
            keys = {**shared, "runner.seed": seed}
            runs = {"local": train(["train"], keys, folder)}
            for mode in MODES:
                own = own_keys(mode, workers)
                runs[mode] = train(job, {**keys, **own, **more}, folder)
            for mode, run in runs.items():
                scores[mode].append(run["auc"])
            told = ", ".join(f"{mode} {run['auc']:.6f}" for mode, run in runs.items())
            print(f"seed {seed}: {told}", flush=True)
    alone = np.array(scores["local"])
    away = {mode: np.array(scores[mode]) - alone for mode in MODES}
    result = {
        "workers": workers,
        "servers": servers,
        "auc": {mode: round(float(np.mean(values)), 6) for mode, values in scores.items()},
        "mean_difference": {mode: round(float(d.mean()), 7) for mode, d in away.items()},
        "most_difference": {mode: round(float(abs(d).max()), 7) for mode, d in away.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
