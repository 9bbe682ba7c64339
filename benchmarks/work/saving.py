"""A training that saves itself and says what that costs: see ``checkpoint.py``.

Worker 0 writes a JSON object a round to the folder's ``rounds``. It begins a round when the
folder has a file ``go-N``, nobody steps while it has a file ``hold``, and all workers end when
it has a file ``end``. While there is a file ``hot``, steps take their rows from the first
hundredth of all.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.api.public import session
from paramfleet.session.checkpoint.background import Outcome
from paramfleet.session.checkpoint.job_save import Chain
from paramfleet.session.checkpoint.saving import Saving
from paramfleet_shared.checkpoint.increments import Base
from paramfleet_shared.checkpoint.manifest import new_identity
from recovering import Ranking

LONGEST_S = 3600.0
"""After that a worker ends, whatever its folder says."""

FILL = 100_000
"""Ids of a step that makes rows."""


class Training:
    """Steps of one worker.

    Args:
        args: Of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._saving = Saving(session)
        self._chance = torch.Generator().manual_seed(fleet.worker_index())
        self.model = fleet.distributed_model(Ranking(args.ids, args.dim))
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = args.mode != "sync"
        if args.mode == "geo":
            strategy.a_sync_configs = {"k_steps": 50}
        inner = torch.optim.Adagrad(self.model.parameters(), lr=0.01)
        self.optimizer = fleet.distributed_optimizer(inner, strategy)

    def fill(self) -> None:
        """Make a row of every id, each worker its part."""
        rank, size = fleet.worker_index(), fleet.worker_num()
        for start in range(rank * FILL, self._args.ids, size * FILL):
            self.step(torch.arange(start, min(start + FILL, self._args.ids))[:, None])

    def step(self, ids: torch.Tensor | None = None) -> float:
        """Take a step; return for how many seconds."""
        if ids is None:
            is_hot = (self._args.folder / "hot").exists()
            most = max(1, self._args.ids // 100) if is_hot else self._args.ids
            ids = torch.randint(most, (self._args.batch // 8, 8), generator=self._chance)
        began = time.perf_counter()
        loss = self.model(ids).square().mean()
        self.optimizer.minimize(loss, examples=len(ids))
        return time.perf_counter() - began

    def steps_for(self, seconds: float) -> list[float]:
        """Step for so long; return how long each took."""
        end, found = time.perf_counter() + seconds, list[float]()
        while time.perf_counter() < end:
            found.append(self.step())
        return found

    def steps_during(self, folder: Path, chain: Chain | None) -> tuple[list[float], Outcome]:
        """Step while a checkpoint is written; return how long each took, and the outcome.

        The first one has what the step waits for that begins it.
        """
        done, outcomes = threading.Event(), list[Outcome]()

        def end(outcome: Outcome) -> None:
            outcomes.append(outcome)
            done.set()

        began = time.perf_counter()
        begin = partial(self._saving.begin, chain=chain)
        self._saving.background.start(begin, folder, end)
        found = [time.perf_counter() - began + self.step()]
        while not done.is_set():
            found.append(self.step())
        return found, outcomes[0]

    def steps_beside(self, folder: Path, num_bytes: int) -> list[float]:
        """Step while another process hashes and writes so many bytes, and no checkpoint is."""
        bare = Path(__file__).with_name("bare_writer.py")
        command = [sys.executable, str(bare), str(folder), str(num_bytes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as writer:
            while not folder.exists() and writer.poll() is None:
                self.step()
            assert writer.stdin is not None
            writer.stdin.write(b"\n")
            writer.stdin.close()
            found = [self.step()]
            while writer.poll() is None:
                found.append(self.step())
        assert writer.returncode == 0
        return found


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.iterdir())


def measure(training: Training, folder: Path, number: int, window_s: float) -> dict[str, Any]:
    """Save once whole and once what changed; return what that took."""
    before = training.steps_for(window_s)
    whole, base, changed = (
        folder / f"{number}-{kind}" for kind in ("whole", "base", "changed")
    )
    during, saved = training.steps_during(whole, None)
    after = training.steps_for(window_s)
    bare = training.steps_beside(folder / f"{number}-bare", size_of(whole))
    (folder / "hot").touch()
    training.steps_for(min(1.0, window_s))  # others have seen it then
    save = new_identity()
    training.steps_during(base, Chain(save))
    training.steps_for(window_s)
    chain = Chain(new_identity(), Base(save=save, folder=base.name))
    _, increment = training.steps_during(changed, chain)
    (folder / "hot").unlink()
    return {
        "errors": [each["error"] for each in (saved, increment) if each["error"]],
        "incremental": increment["incremental"],
        "seconds": saved["seconds"],
        "bytes": size_of(whole),
        "held_ms": 1e3 * saved["paused_s"],
        "pause_ms": 1e3 * max(during),
        "longest_ms": 1e3 * max(*before, *after),
        "steps_per_s": len(during) / sum(during),
        "plain_steps_per_s": (len(before) + len(after)) / (sum(before) + sum(after)),
        "bare_seconds": sum(bare),
        "bare_pause_ms": 1e3 * max(bare),
        "bare_steps_per_s": len(bare) / sum(bare),
        "increment_seconds": increment["seconds"],
        "increment_bytes": size_of(changed),
    }


def main() -> None:
    """Serve or train, as the role says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--mode", default="async")
    parser.add_argument("--ids", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--window", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server(checkpoint_dirs=[args.folder])
        return
    training = Training(args)
    fleet.init_worker()
    training.fill()
    number, end = 0, time.perf_counter() + LONGEST_S
    hold, pause = args.folder / "hold", threading.Event()
    (args.folder / f"ready-{fleet.worker_index()}").touch()
    while not (args.folder / "end").exists() and time.perf_counter() < end:
        if hold.exists():
            pause.wait(0.02)
            continue
        if args.mode == "sync" and fleet.worker_index():
            training.step()
            continue
        if fleet.is_first_worker() and (args.folder / f"go-{number}").exists():
            found = measure(training, args.folder, number, args.window)
            with (args.folder / "rounds").open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            number += 1
        training.step()
    fleet.stop_worker()


if __name__ == "__main__":
    main()
