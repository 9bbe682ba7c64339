"""The program of a run: each change adds a known number where no other change adds one.

So the end tells of every step whether it was applied once, twice or not at all. Sums of rows
and values that all workers change say the same of what is shared.

It is run as a script, by ``paramfleet launch``. A pserver of it doesn't load torch.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_worker.app.verify.sums import (
    COMMON,
    OWN,
    PLACES,
    common_ids,
    factor_of,
    own_ids,
    own_place,
    step_ids,
)

__all__ = ["HURRIES", "PLAN", "Answers", "run"]

PLAN = "PARAMFLEET_VERIFY"
"""Variable with the run's facts, as JSON."""

HURRIES = "hurry"
"""A file beside the logs: once it exists, steps aren't held up by ``pace_s`` any more."""


def run() -> None:
    """Be a pserver or a worker of a run, as the environment says."""
    environment = read_environment()
    _say(f"pid={os.getpid()}")
    if environment["TRAINING_ROLE"] == "PSERVER":
        from paramfleet_pserver.app import run as serve  # noqa: PLC0415 -- not in workers

        serve()
        return
    found = _train(json.loads(environment[PLAN]), SystemClock())
    name = f"worker-{found['rank']}.json"
    Path(environment["PARAMFLEET_LOG_DIR"], name).write_text(json.dumps(found))


def _say(text: str) -> None:
    """Tell the run's process, which reads what the launcher shows."""
    sys.stderr.write(f"ledger {text}\n")
    sys.stderr.flush()


class Answers:
    """Which processes of pservers answer pulls, and the versions that they show."""

    def __init__(self) -> None:
        self.fallen: list[str] = []
        self._newest: dict[tuple[int, int, str], int] = {}
        self._terms: dict[int, int] = {}
        self._asked: dict[int, tuple[Any, dict[str, int]]] = {}
        """Pulls that are on their way, with the newest versions when they were sent."""
        self._has_new_term = self._had_new_term = False

    def take_new_term(self) -> bool:
        """Return whether a step may lead by more, at its end: it began before a recovery.

        That is so if another process of a pserver has answered in this step, or in the one
        before: that one asks at its end, before it waits, whether this one may begin.
        """
        had_new, self._had_new_term = self._had_new_term, self._has_new_term
        self._has_new_term = False
        return had_new or self._had_new_term

    def watch(self) -> None:
        """Look at every pull of the worker, and at each answer that it takes."""
        from paramfleet.transport.owner import ADDRESS, Owner  # noqa: PLC0415 -- not in pservers

        addressed, note = Owner.addressed, Owner.note

        def sent(owner: Owner, message: Any) -> Any:
            asked = addressed(owner, message)
            server, term = asked.fields[ADDRESS]
            self.send(server, term, asked)
            return asked

        def taken(owner: Owner, asked: Any, answer: Any) -> bool:
            is_taken = note(owner, asked, answer)
            if is_taken:
                server, term = asked.fields[ADDRESS]
                self.take(server, term, asked, answer)
            return is_taken

        Owner.addressed = sent  # type: ignore[assignment,method-assign]  # a look
        Owner.note = taken  # type: ignore[assignment,method-assign]

    def send(self, server: int, term: int, asked: Any) -> None:
        """Take note of a request to a process of a pserver, if it pulls anything."""
        known = {each: self._newest.get((server, term, each), 0) for each in _pulled(asked)}
        if known:
            self._asked[id(asked)] = asked, known

    def take(self, server: int, term: int, asked: Any, answer: Any) -> None:
        """Take note of the answer: it shows what others showed before it was asked for.

        Several pulls may be on their way, and be answered in another order.
        """
        _, known = self._asked.pop(id(asked), (None, {}))
        if not known:
            return
        self._has_new_term |= self._terms.setdefault(server, term) != term
        self._terms[server] = term
        versions = zip(known.items(), answer.fields["versions"], strict=True)
        for (table, before), version in versions:
            if version < before:
                self.fallen.append(
                    f"pserver {server} term {term}, table {table!r}: {version} after {before}"
                )
            key = (server, term, table)
            self._newest[key] = max(version, self._newest.get(key, 0))


def _pulled(asked: Any) -> list[str]:
    """Return the tables that a request pulls: by itself, or behind a push of sync."""
    parts = asked.fields.get("pull", ())
    if "min_version" in asked.fields:
        parts = asked.fields["parts"]
    return [part["table"] for part in parts]


class _Times:
    """When steps ended, also those of the worker's former processes: in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, ended: float) -> None:
        with self._path.open("a") as file:
            file.write(f"{ended}\n")

    def all(self) -> list[float]:
        return [float(line) for line in self._path.read_text().splitlines()]


def _train(plan: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Train as a worker; return what it found."""
    import torch  # noqa: PLC0415 -- not in pservers

    import paramfleet as fleet  # noqa: PLC0415

    steps = plan["steps"]
    answers = Answers()
    answers.watch()
    fleet.init()
    rank, size = fleet.worker_index(), fleet.worker_num()
    model = fleet.distributed_model(_model(plan, size))
    strategy = _strategy(fleet.DistributedStrategy(), plan)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = fleet.distributed_optimizer(sgd, strategy)
    fleet.init_worker()
    leads, pause = [0], threading.Event()
    hurries = Path(read_environment()["PARAMFLEET_LOG_DIR"], HURRIES)
    times = _Times(Path(read_environment()["PARAMFLEET_LOG_DIR"], f"worker-{rank}.times"))
    for step in range(optimizer.num_steps + 1, steps + 1):  # it may have died, and be back
        total = model.places[:, own_place(rank, step, steps)].sum()
        total = total + model.common.sum() + model.own[rank].sum()
        if _has_rows(plan):
            ids = [*own_ids(rank), *common_ids(), *step_ids(rank, step)]
            total = total + model.rows(torch.tensor(ids)).sum()
        begun = clock.monotonic()
        optimizer.minimize(-factor_of(rank, step) * total, examples=1)
        pause.wait(max(0.0, plan["pace_ms"] / 1000 - (clock.monotonic() - begun)))
        times.add(clock.monotonic())
        if not hurries.exists():
            pause.wait(plan.get("pace_s", 0.0))
        if not answers.take_new_term():  # who began already isn't held back by a recovery
            leads.append(optimizer.staleness)
        _say(f"step {step}.")
    fleet.finish_training()
    found = {"rank": rank, "times": times.all(), "lead": max(leads)}
    found |= _numbers(model, plan, size)
    fleet.stop_worker()
    return {**found, "fallen": answers.fallen}


def _has_rows(plan: dict[str, Any]) -> bool:
    """Return whether there are sparse tables: LocalSGD has none."""
    return bool(plan["mode"] != "localsgd")


def _model(plan: dict[str, Any], size: int) -> Any:
    """Return the numbers that are changed, all 0."""
    import torch  # noqa: PLC0415 -- not in pservers

    import paramfleet as fleet  # noqa: PLC0415

    model = torch.nn.Module()
    if _has_rows(plan):
        model.rows = fleet.nn.Embedding(0, 4, initializer=fleet.nn.constant(0.0))
    model.places = torch.nn.Parameter(torch.zeros(PLACES, size * plan["steps"]))
    model.common = torch.nn.Parameter(torch.zeros(COMMON))
    model.own = torch.nn.Parameter(torch.zeros(size, OWN))
    return model


def _numbers(model: Any, plan: dict[str, Any], size: int) -> dict[str, Any]:
    """Return all numbers as they are at the end."""
    import torch  # noqa: PLC0415 -- not in pservers

    found: dict[str, Any] = {
        name: getattr(model, name).tolist() for name in ("places", "common", "own")
    }
    if not _has_rows(plan):
        return found
    ids = list(common_ids())
    for rank in range(size):
        ids += own_ids(rank)
        for step in range(1, plan["steps"] + 1):
            ids += step_ids(rank, step)
    model.eval()
    with torch.no_grad():
        rows = model.rows(torch.tensor(ids)).tolist()
    return {**found, "rows": {str(id_): row for id_, row in zip(ids, rows, strict=True)}}


def _strategy(strategy: Any, plan: dict[str, Any]) -> Any:
    """Have changes add up, whatever their order."""
    mode = plan["mode"]
    strategy.a_sync = mode != "sync"
    if mode == "async":
        strategy.a_sync_configs = {
            "thread_pool_size": 4,
            "send_queue_size": 4,
            "async_rate": "full",
            "fresh_steps": 0,
        }
        if plan["max_staleness"] is not None:
            strategy.a_sync_configs["max_staleness"] = plan["max_staleness"]
    if mode == "geo":
        configs = {"k_steps": 2, "geo_merge": "remainder", "fresh_steps": 0}
        strategy.a_sync_configs = configs
    if mode == "localsgd":
        strategy.diloco = True
        outer = {"outer_optimizer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}
        strategy.diloco_configs = {"k_steps": 3, **outer}
    return strategy


if __name__ == "__main__":
    run()
