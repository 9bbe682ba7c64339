"""Kills a job that trains by days and those who follow it: ``python benchmarks/ledger.py``.

A ledger notes each change of the stream as it comes. At the end no change is lost, doubled,
stale or out of order, every answer of the server is a version that was published, and what is
served is what the job has saved, to the bit. See README.md beside this file.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

import paramfleet as fleet
from followed.asking import Asker, all_rows, faults_of, is_of
from followed.ledger import Ledger
from followed.model import NUM_IDS, UNKNOWN, write_model, write_pass
from followed.programs import Programs
from paramfleet.serving import Client
from paramfleet_shared.checkpoint.saved_rows import load_rows
from paramfleet_shared.deltas.inspecting.verifying import verify_stream
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.tokens import new_token

__all__ = ["Plan", "measure"]

Victim = Literal["job", "worker", "exporter", "server"]

VICTIMS: tuple[Victim, ...] = ("job", "worker", "exporter", "server")
WITHIN_S = 120.0
LAST_SAMPLES = 500
"""Of each pass that is left once all were killed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is trained, and who is killed."""

    days: int = 28
    """At most: as many passes are written as are trained until the last one is killed."""
    samples: int = 8000
    """Of a pass; a day has two."""
    mode: str = "async"
    kills: Sequence[Victim] = VICTIMS
    """One after the other."""
    changes: int = 5
    """Of rows, between two kills."""
    every_s: float = 0.05
    base_changes: int = 20


@dataclass(slots=True)
class Found:
    """What a run came to."""

    faults: list[str] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)
    went_on_behind: list[str] = field(default_factory=list)
    """What each training that was started again said of its checkpoint."""
    streams: int = 0
    changes: int = 0
    bases: int = 0
    answers: int = 0
    versions_asked: int = 0
    away: int = 0
    """Questions that nobody answered."""
    rolled_back: list[int] = field(default_factory=list)
    seconds: float = 0.0


class Run:
    """One run.

    Args:
        plan: What is done.
        folder: For all files.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._found = Found()
        self._passes = [(day, number) for day in range(1, plan.days + 1) for number in (0, 1)]
        """Those whose data isn't there yet."""
        token, entry = new_token("admin", "ledger")
        tokens = folder / "tokens"
        tokens.write_text(entry.to_line(), encoding="ascii")
        name = f"ledger-{folder.name[-8:].lower().replace('_', '-')}"
        self._programs = Programs(
            folder,
            job=name,
            tokens=tokens,
            every_s=plan.every_s,
            base_changes=plan.base_changes,
        )
        self._ledger = Ledger(folder / "stream", num_ids=NUM_IDS, unknown=UNKNOWN)
        self._client = Client(self._programs.url, token=token, timeout_s=10.0)
        self._asker = Asker(self._client)

    def run(self) -> Found:
        """Train to the end, with all kills.

        Raises:
            ChildFailedError: if a program fails that wasn't killed.
        """
        plan, model = self._plan, self._folder / "model"
        write_model(model, days=plan.days, mode=plan.mode)
        self._give_pass(samples=plan.samples)
        self._ledger.start()
        try:
            self._start()
            for victim in plan.kills:
                self._kill(victim)
            while self._passes:
                self._give_pass(samples=LAST_SAMPLES)
            self._programs.wait(self._programs.job.ended, within_s=WITHIN_S, what="the end")
            self._compare_end()
        finally:
            self._client.close()
            self._programs.close()
            if self._ledger.is_alive():
                self._ledger.close()
        return self._found

    def _start(self) -> None:
        programs = self._programs
        programs.job.start()
        programs.wait(
            lambda: "job.training" in programs.job.log, within_s=WITHIN_S, what="the training"
        )
        programs.exporter.start()
        programs.server.start()
        self._asker.start()

    def _give_pass(self, *, samples: int) -> None:
        """Write the data of the next pass."""
        write_pass(self._folder / "model", *self._passes.pop(0), samples=samples)

    def _keep_busy(self) -> None:
        """Write the next pass once the training has no more than one left."""
        done = self._folder / "model/saved/donefile.txt"
        num_saved = len(done.read_text().splitlines()) if done.exists() else 0
        num_given = 2 * self._plan.days - len(self._passes)
        if num_given - num_saved < 2 and len(self._passes) > 1:  # the last one ends the job
            self._give_pass(samples=self._plan.samples)

    def _kill(self, victim: Victim) -> None:
        """Kill one in the middle of its work, and start it again by the same command."""
        ledger, mark = self._ledger, len(self._ledger.entries)
        saved = self._folder / "model/saved/donefile.txt"

        def have_come() -> bool:
            self._keep_busy()
            new = [each for each in ledger.entries[mark:] if len(each.ids.get("words", ()))]
            if victim not in {"job", "worker"}:
                return len(new) >= self._plan.changes
            if not saved.exists():  # it is to be killed within a pass behind a checkpoint
                return False
            saved_at = saved.stat().st_mtime
            return sum(each.moment > saved_at for each in new) >= self._plan.changes

        self._programs.wait(have_come, within_s=WITHIN_S, what="changes of the training")
        program = self._programs.job
        if victim == "worker":
            program.kill_worker()
        else:
            program = getattr(self._programs, victim)
            program.kill()
        if victim in {"job", "worker"}:
            self._note_checkpoint()
        program.start()
        self._found.kills[victim] = self._found.kills.get(victim, 0) + 1

    def _note_checkpoint(self) -> None:
        lines = (self._folder / "model/saved/donefile.txt").read_text().splitlines()
        day, _, _, number, _ = lines[-1].split("\t")
        self._found.went_on_behind.append(f"{day}/{number}")

    def _compare_end(self) -> None:
        """Compare what is served with the job's last export and checkpoint, and go back."""
        found, programs = self._found, self._programs
        saved = self._folder / "model" / "saved" / f"202601{self._plan.days + 1:02d}"
        words, users = (load_rows(saved / "0", table) for table in ("words", "users"))
        export = fleet.serving.tables(saved / "base")["words"]
        if not np.array_equal(export.ids.numpy(), words.ids) or not np.array_equal(
            export.rows.numpy(), words.rows
        ):
            found.faults.append("the base isn't what the checkpoint has")
        rows = {}
        for name, each in (("words", words), ("users", users)):
            size = (NUM_IDS, each.rows.shape[1])
            rows[name] = np.full(size, self._ledger.unknown[name], np.float32)
            rows[name][each.ids] = each.rows

        def is_served() -> bool:
            try:
                served = all_rows(self._client)
            except FleetError:
                return False
            return all(np.array_equal(served.rows[name], rows[name]) for name in rows)

        programs.wait(is_served, within_s=WITHIN_S, what="the job's rows at the server")
        if programs.exporter.end():
            found.faults.append("the exporter ended badly")
        self._asker.close()
        self._ledger.close()
        dense = self._client.dense()
        assert dense is not None, "none is known"
        path = saved / "base" / "model.pt"
        model = torch.load(path, weights_only=True)  # noqa: TID251 (the run's own)
        for name, value in model.items():
            if not np.array_equal(dense.tensors[name], value.numpy()):
                found.faults.append(f"{name} isn't served as the job has it")
        stream, state = self._ledger.streams[-1], self._ledger.states
        for name, each in (("words", words), ("users", users)):
            last = state[stream, dense.version.number].has_row[name]
            if not np.array_equal(np.flatnonzero(last), each.ids):
                found.faults.append(f"the stream has other ids of {name} than the job")
        self._roll_back(stream, dense.version.number)
        self._sum_up()

    def _roll_back(self, stream: str, last: int) -> None:
        """Go back to former versions, and on again."""
        found = self._found
        for number in sorted({0, last // 2, last - 1}):
            version = self._client.roll_back(number, stream=stream)
            served = all_rows(self._client)
            state = self._ledger.states[stream, number]
            dense = self._client.dense()
            assert dense is not None, "none is known"
            is_dense = all(
                np.array_equal(dense.tensors[name], state.dense[name]) for name in state.dense
            )
            if (version.number, served.version.number) != (number, number):
                found.faults.append(f"{number} was asked for, and {version.number} is served")
            if not is_of(served, state) or not is_dense:
                found.faults.append(f"{number} isn't what it was before, after a rollback")
            found.rolled_back.append(number)
        self._client.follow()
        self._programs.wait(
            lambda: self._client.version().number == last, within_s=WITHIN_S, what="the last"
        )
        if not is_of(all_rows(self._client), self._ledger.states[stream, last]):
            found.faults.append("the last version isn't what it was, after a rollback")

    def _sum_up(self) -> None:
        found, ledger, asker = self._found, self._ledger, self._asker
        found.faults += ledger.faults
        found.faults += faults_of(asker.answers, ledger)
        found.faults += asker.errors
        found.faults += verify_stream(self._folder / "stream").problems
        found.streams, found.changes = len(ledger.streams), len(ledger.entries)
        found.bases = len(ledger.bases)
        found.answers, found.away = asker.num_answers, asker.num_away
        found.versions_asked = len(asker.answers)


def measure(plan: Plan, folder: Path) -> Found:
    """Run it once.

    Raises:
        ChildFailedError: if a program fails that wasn't killed.
    """
    began = time.perf_counter()
    found = Run(plan, folder).run()
    found.seconds = round(time.perf_counter() - began, 1)
    return found


def main() -> None:
    """Kill at random, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--days", type=int, default=28, help="at most")
    parser.add_argument("--samples", type=int, default=20_000, help="of a pass")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--mode", choices=("sync", "async", "geo"), default="async")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    numbers = random.Random(options.seed)
    kills = [numbers.choice(VICTIMS) for _ in range(options.kills)]
    plan = Plan(days=options.days, samples=options.samples, mode=options.mode, kills=kills)
    with tempfile.TemporaryDirectory(prefix="paramfleet-ledger-") as folder:
        found = measure(plan, Path(folder))
    print(json.dumps({name: getattr(found, name) for name in Found.__slots__}))
    if found.faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
