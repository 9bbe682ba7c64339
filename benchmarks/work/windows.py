"""Runs a workload in measured windows: in one process or as every role of a job.

A window is a number of steps that all workers begin together, at a barrier, when they
are warm. It ends for a worker when what it has sent is applied, so nothing is left for
somebody else's window. The job's rate counts the examples of all workers up to the moment
when the first of them is through: while all were at work.

From the command line a workload warms up, runs one window and prints its result. With
``--driven`` it does what the lines of its standard input say, and answers each with a line
of JSON: a benchmark so keeps several jobs warm and runs their windows in turns.
"""

import argparse
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

import torch
from typing_extensions import override

import paramfleet as fleet

__all__ = ["Task", "command_line", "main"]

WIRE_DTYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3")
MODES = ("single", "sync", "async", "geo", "gpubox")


class Task(Protocol):
    """What is trained. Its numbers are made before the first window."""

    batch_size: int
    """Examples of a worker's step."""

    model: torch.nn.Module
    learning_rates: ClassVar[Mapping[str, float]]
    """By the optimizer's name."""

    def batches(self) -> Iterator[Any]:
        """Yield this worker's batches, without an end."""
        ...

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch, to be minimised."""
        ...

    def ids(self, batch: Any) -> Mapping[str, torch.Tensor]:
        """Return the ids of a batch by the path of the module that looks them up.

        A task that no benchmark trains in passes names none.
        """
        del batch
        return {}

    def quality(self) -> dict[str, float]:
        """Return how well the model has learned; every worker calls it."""
        ...


def command_line(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every workload has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--mode", choices=MODES, default="single", help="single is without servers"
    )
    parser.add_argument("--k_steps", type=int, default=100, help="geo: steps of a period")
    parser.add_argument("--optimizer", choices=("sgd", "adagrad", "adam"))
    parser.add_argument("--lr", type=float, help="instead of what the optimizer has here")
    parser.add_argument("--send_queue_size", type=int, default=2, help="async: steps that wait")
    parser.add_argument("--wire_dtype", choices=WIRE_DTYPES, default="float32")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="more a_sync_configs"
    )
    parser.add_argument("--prefetch", type=int, default=0, help="batches to be ahead by")
    parser.add_argument(
        "--budget",
        type=int,
        default=0,
        help="gpubox: bytes of a pass; 0 takes a window for one",
    )
    parser.add_argument("--warm", type=int, default=150, help="steps before the window")
    parser.add_argument("--steps", type=int, help="steps of the window; instead of --seconds")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the window, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--driven", action="store_true", help="obey standard input")
    return parser


def main(make_task: Callable[[argparse.Namespace], Task], options: argparse.Namespace) -> None:
    """Be what the environment says: a server, a worker, or the one process there is."""
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    trainer = _Trainer(make_task(options), options)
    fleet.init_worker()
    if options.driven:
        for line in sys.stdin:
            print(json.dumps(trainer.obey(**json.loads(line))), flush=True)
    else:
        figures = {"mode": trainer.mode, "workers": fleet.worker_num(), **trainer.measure()}
        if fleet.is_first_worker():
            print(json.dumps(figures), flush=True)
    fleet.stop_worker()


class _PassFacts(logging.Handler):
    """Keeps what the log says of passes."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Mapping[str, Any]] = []
        log = logging.getLogger("paramfleet.training.passes.running")
        log.setLevel(logging.INFO)
        log.addHandler(self)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "worker.device_pass":
            self.ended.append(vars(record))

    def take(self) -> dict[str, float]:
        """Return seconds of all passes since the last call, and shares of the later ones."""
        ended, self.ended = self.ended, []
        if not ended:
            return {}
        later = [each["hit_share"] for each in ended if each["number"] > 1]
        parts = {
            f"pass_{name}": sum(each[name] for each in ended)
            for name in ("begin_s", "build_s", "train_s", "end_s")
        }
        return {
            **parts,
            "passes": len(ended),
            "device_bytes": max(each["device_bytes"] for each in ended),
            "hit_share": sum(later) / len(later) if later else 0.0,
        }


class _Trainer:
    """One worker's model, batches and optimizer, with the steps they have gone."""

    def __init__(self, task: Task, options: argparse.Namespace) -> None:
        self._task = task
        self._options = options
        name: str = options.optimizer or next(iter(task.learning_rates))
        task.model = fleet.distributed_model(task.model)
        self._optimizer = fleet.distributed_optimizer(
            _optimizer(name, task.model, options.lr or task.learning_rates[name]),
            _strategy(options),
        )
        self._batches = task.batches()
        if options.prefetch:
            ahead = fleet.prefetch(self._batches, task.model, depth=options.prefetch)
            self._batches = iter(ahead)
        self._facts = _PassFacts()
        self._num_steps = 0
        self._step_s = 0.0
        self._loss = float("nan")

    @property
    def mode(self) -> str:
        """The mode that trains."""
        return self._optimizer.mode.name

    def obey(self, *, do: str, steps: int = 0, seconds: float = 0.0) -> dict[str, Any]:
        """Carry out one command of the driver.

        Raises:
            ValueError: if it is none.
        """
        match do:
            case "warm":
                return self._warm(steps)
            case "window":
                return self._window(steps or self._steps_of(seconds))
            case "quality":
                return self._task.quality()
            case _:
                msg = f"no command {do!r}; there are warm, window and quality"
                raise ValueError(msg)

    def measure(self) -> dict[str, Any]:
        """Warm up, run one window, look at the quality."""
        self._warm(self._options.warm)
        steps = self._options.steps or self._steps_of(self._options.seconds)
        return {**self._window(steps), **self._task.quality()}

    def _warm(self, steps: int) -> dict[str, Any]:
        """Step unmeasured. In GEO the windows then have their exchanges in the middle."""
        if self._optimizer.mode.name == "geo":
            half = self._optimizer.mode.k_steps // 2
            steps = self._whole_periods(steps) + half - self._num_steps % (2 * half or 1)
        self._run(max(1, steps - 20))
        start = time.perf_counter()
        self._run(20)
        self._step_s = float(fleet.metrics.max(time.perf_counter() - start)) / 20
        return {"step_s": self._step_s}

    def _steps_of(self, seconds: float) -> int:
        """Return how many steps take about so long, the same number in every worker."""
        return max(1, round(seconds / self._step_s))

    def _window(self, steps: int) -> dict[str, Any]:
        steps = self._whole_periods(steps)
        self._facts.take()
        fleet.barrier_worker()
        start, wall = time.perf_counter(), datetime.now(UTC).timestamp()
        ends = [end - start for end in self._run(steps)]
        self._settle()
        ends_at = time.perf_counter() - start
        every: list[tuple[list[float], float]] = fleet.util.all_gather([ends, ends_at])
        together = min(last for _, last in every)
        num_steps = sum(end <= together for each, _ in every for end in each)
        return {
            "samples_per_s": num_steps * self._task.batch_size / together,
            "seconds": together,
            "steps": num_steps,
            "loss": self._loss,
            "began_at": wall,
            "ends": [each for each, _ in every],
            **self._facts.take(),
        }

    def _whole_periods(self, steps: int) -> int:
        """Return at least so many steps: in GEO, with as many exchanges in any such window."""
        period = self._optimizer.mode.k_steps or 1
        return -(-steps // period) * period

    def _run(self, steps: int) -> list[float]:
        """Train; returns when each step ended."""
        ends = []
        for batch in self._passing(itertools.islice(self._batches, steps)):
            loss = self._task.loss(batch)
            self._optimizer.minimize(loss, examples=self._task.batch_size)
            self._loss = loss.item()
            ends.append(time.perf_counter())
        if self.mode == "gpubox":
            ends[-1] = time.perf_counter()  # what was trained is written back
        self._num_steps += steps
        return ends

    def _passing(self, batches: Iterator[Any]) -> Iterable[Any]:
        """Return batches of a window: in gpubox as passes over them."""
        if self.mode != "gpubox":
            return batches
        budget = self._options.budget or None
        known = self._task.ids
        return fleet.device_pass(
            list(batches), self._task.model, ids=known, device_budget=budget
        )

    def _settle(self) -> None:
        """Wait until what this worker has sent is applied."""
        if self._optimizer.mode.name == "async":
            self._optimizer.running.flush()
        self._optimizer.wait_exchanged()


def _optimizer(name: str, model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
    match name:
        case "sgd":
            return torch.optim.SGD(model.parameters(), lr=lr)
        case "adagrad":
            return torch.optim.Adagrad(model.parameters(), lr=lr)
        case _:
            return torch.optim.Adam(model.parameters(), lr=lr)


def _strategy(options: argparse.Namespace) -> fleet.DistributedStrategy:
    chosen = fleet.DistributedStrategy()
    chosen.a_sync = options.mode != "sync"
    if options.mode == "gpubox":
        chosen.a_sync_configs = {"use_ps_gpu": 1}
        return chosen
    chosen.a_sync_configs = {"wire_dtype": options.wire_dtype}
    if chosen.a_sync:
        chosen.a_sync_configs["fresh_steps"] = 0  # windows are of what comes after those
    if options.mode == "geo":
        chosen.a_sync_configs["k_steps"] = options.k_steps
    elif options.mode == "async":
        chosen.a_sync_configs["send_queue_size"] = options.send_queue_size
    for setting in options.set:
        key, _, value = setting.partition("=")
        chosen.a_sync_configs[key] = int(value) if value.isdecimal() else value
    return chosen
