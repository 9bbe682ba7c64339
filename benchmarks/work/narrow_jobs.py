"""Whole small jobs with a narrower wire, one after the other: for ``compression.py``.

This process has everything imported and the data at hand, and forks the processes of each
job: a coordinator, 2 pservers and 2 workers. One JSON object a line on standard input,

    {"data": "flights", "mode": "async", "wire": "int8", "seed": 0, "rows": 60000,
     "job": "n1", "redis": "redis://..."}

answers one line: ``auc`` of the held-out examples, ``bytes_per_step`` (bodies of requests
and answers of worker 0 until its last step, headers and ids included), ``steps``, and
``cpu_s``, the processor time of all its processes from their start to their end.
"""

import argparse
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import paramfleet as fleet
import paramfleet_coordinator.__main__
import paramfleet_pserver.app  # noqa: F401 - before the fork
from paramfleet_shared.net.secret import new_secret
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.tether import tie
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.tables.warm import warm

sys.path.append(str(Path(__file__).parents[2] / "examples" / "wide_and_deep"))
sys.path.append(str(Path(__file__).parents[1]))

from data import load_dataset
from evaluation import evaluate
from model import WideDeep
from ports import free_port
from records import BatchPlan, Dataset, Examples

NUM_WORKERS = NUM_SERVERS = 2
BATCH_SIZE = 256
K_STEPS = 10
DIM = {"flights": 8, "criteo": 16}
RATES = {"flights": 0.05, "criteo": 0.02}
CRITEO = "medium/criteo1tb_train_60k.tsv.gz"
CRITEO_TRAIN_ROWS = 50_000
NUM_COUNTS, NUM_NAMES = 13, 26
FIELD_SHIFT = 40
"""Criteo's ids are below 2^40; the field's number goes above."""


def load_criteo(file: Path) -> Dataset:
    """Return clicks: 26 names and 13 counts, each count as an id of its magnitude, too."""
    columns: dict[int, Any] = {0: np.int64}
    columns |= dict.fromkeys(range(1, 1 + NUM_COUNTS), np.float64)
    columns |= dict.fromkeys(range(1 + NUM_COUNTS, 1 + NUM_COUNTS + NUM_NAMES), "Int64")
    frame = pd.read_csv(file, sep="\t", header=None, dtype=columns)
    counts = frame.iloc[:, 1 : 1 + NUM_COUNTS].to_numpy(np.float64)
    sizes = np.sign(np.nan_to_num(counts)) * np.log1p(np.abs(np.nan_to_num(counts)))
    magnitudes = np.where(np.isnan(counts), -99, np.floor(2 * sizes)).astype(np.int64) + 99
    names = frame.iloc[:, 1 + NUM_COUNTS :].fillna(-1).to_numpy(np.int64) + 1
    fields = np.arange(NUM_COUNTS + NUM_NAMES, dtype=np.int64) << FIELD_SHIFT
    ids = np.concatenate([magnitudes, names], axis=1) + fields
    train = slice(0, CRITEO_TRAIN_ROWS)
    dense = ((sizes - sizes[train].mean(0)) / sizes[train].std(0)).astype(np.float32)
    labels = frame[0].to_numpy(np.float32)

    def examples(rows: slice) -> Examples:
        return Examples(
            wide_ids=ids[rows], deep_ids=ids[rows], dense=dense[rows], labels=labels[rows]
        )

    return Dataset(train=examples(train), test=examples(slice(CRITEO_TRAIN_ROWS, None)))


def strategy_of(case: Mapping[str, Any]) -> fleet.DistributedStrategy:
    """Return the strategy of a case."""
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    shape = {"k_steps": K_STEPS} if case["mode"] == "geo" else {"send_queue_size": 2}
    strategy.a_sync_configs = {**shape, "fresh_steps": 0, "wire_dtype": case["wire"]}
    return strategy


def train(case: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Train one epoch as a worker of the job, and return the answer."""
    examples = dataset.train.take(chosen_rows(case, len(dataset.train)))
    torch.set_num_threads(1)
    torch.manual_seed(case["seed"])
    model = fleet.distributed_model(
        WideDeep(
            num_deep_fields=examples.deep_ids.shape[1],
            num_dense=examples.dense.shape[1],
            dim=DIM[case["data"]],
            seed=case["seed"],
        )
    )
    adagrad = torch.optim.Adagrad(model.parameters(), lr=RATES[case["data"]])
    optimizer = fleet.distributed_optimizer(adagrad, strategy_of(case))
    criterion = torch.nn.BCEWithLogitsLoss()
    fleet.init_worker()
    plan = BatchPlan(batch_size=BATCH_SIZE, seed=case["seed"], num_workers=NUM_WORKERS)
    steps, begun = 0, traffic()
    for rows in plan.rows(len(examples), epoch=0, rank=fleet.worker_index()):
        batch = examples.batch(rows)
        loss = criterion(model(batch.wide_ids, batch.deep_ids, batch.dense), batch.labels)
        optimizer.minimize(loss)
        steps += 1
        if case["mode"] == "geo" and steps % K_STEPS == 0:
            # Else what a worker hears would depend on the machine: how often it exchanges, and
            # how far the other one is.
            optimizer.wait_exchanged()
            fleet.barrier_worker()
    if case["mode"] == "async":
        optimizer.running.flush()  # what waits to be sent belongs to the steps
    optimizer.wait_exchanged()
    moved = traffic() - begun
    fleet.finish_training()
    auc = evaluate(model, dataset.test).auc
    fleet.stop_worker()
    return {"auc": auc, "bytes_per_step": moved / steps, "steps": steps}


def chosen_rows(case: Mapping[str, Any], num_rows: int) -> NDArray[np.int64]:
    """Return which examples a case trains on: others for every seed, if not all."""
    order = np.random.default_rng((case["seed"], 1)).permutation(num_rows)
    return np.sort(order[: case["rows"] or num_rows])


def traffic() -> int:
    """Return the bytes between this worker and the pservers so far."""
    fleet.report(loss=0.0, examples=1)  # a worker is listed once it has reported
    mine = next(w for w in fleet.job_progress() if w["rank"] == fleet.worker_index())
    return int(mine["sent_bytes"]) + int(mine["received_bytes"])


def run(case: Mapping[str, Any], dataset: Dataset, log: Path) -> dict[str, Any]:
    """Fork the processes of a job and wait for all of them.

    Raises:
        RuntimeError: if one failed; it shows the end of the log.
    """
    job = {"PARAMFLEET_JOB": case["job"], "PARAMFLEET_REDIS": case["redis"]}
    endpoints = ",".join(f"127.0.0.1:{free_port()}" for _ in range(NUM_SERVERS))
    job |= {"PADDLE_PSERVERS_IP_PORT_LIST": endpoints, "POD_IP": "127.0.0.1"}
    job |= {"PADDLE_TRAINERS_NUM": str(NUM_WORKERS), "PARAMFLEET_LOG_LEVEL": "WARNING"}
    job["PARAMFLEET_SECRET"] = new_secret()
    job["PARAMFLEET_LEASE_TTL_S"] = "30"  # a busy machine is slow, not dead
    sizes = [f"--worker-num={NUM_WORKERS}", f"--server-num={NUM_SERVERS}"]
    reading, writing = os.pipe()

    def coordinate() -> None:
        sys.argv = ["coordinator", *sizes]
        paramfleet_coordinator.__main__.main()

    def serve() -> None:
        fleet.init()
        fleet.init_server()
        fleet.run_server()

    def work() -> None:
        fleet.init()
        found = train(case, dataset)
        if fleet.worker_index() == 0:
            os.write(writing, json.dumps(found).encode())

    before_s = ended_cpu_s()
    pids = [fork(coordinate, job, log)]
    for endpoint in endpoints.split(","):
        role = {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": endpoint.partition(":")[2]}
        pids.append(fork(serve, job | role, log))
    for rank in range(NUM_WORKERS):
        role = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(rank)}
        pids.append(fork(work, job | role, log))
    os.close(writing)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    with os.fdopen(reading, "rb") as answer:
        found = answer.read()
    if any(codes) or not found:
        story = log.read_text(errors="replace")[-2000:]
        msg = f"exit codes {codes}: {story}"
        raise RuntimeError(msg)
    result: dict[str, Any] = json.loads(found)
    return {**result, "cpu_s": ended_cpu_s() - before_s}


def ended_cpu_s() -> float:
    """Return the processor time so far of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fork(act: Callable[[], None], env: Mapping[str, str], log: Path) -> int:
    """Run ``act`` in a new process that writes to the log; return its pid."""
    starter = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    if not tie(starter):
        os._exit(1)
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(env)  # noqa: TID251 - this is the child's environment
        act()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the end of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Load the data, say what there is, and run what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="gets the logs")
    parser.add_argument("--data-dir", type=Path, help="has medium/criteo1tb_train_60k.tsv.gz")
    options = parser.parse_args()
    cache = Path(read_environment().get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    datasets = {
        "flights": load_dataset("flights", data_dir=None, cache_dir=cache / "paramfleet")
    }
    missing = "no --data-dir was given, nor PARAMFLEET_DATA"
    if options.data_dir is not None:
        missing = f"{options.data_dir} has no {CRITEO}"
        if (options.data_dir / CRITEO).is_file():
            missing = ""
            datasets["criteo"] = load_criteo(options.data_dir / CRITEO)
    warm(TableSpec(name="warm", kind="dense", size=1))
    warm(TableSpec(name="warm", kind="sparse"))
    print(json.dumps({"data": list(datasets), "missing": missing}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        found = run(case, datasets[case["data"]], options.folder / f"{case['job']}.log")
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
