"""A worker whose steps take a set time, and the last worker's a multiple of it.

A step computes little and then sleeps, so that workers don't wait for each other's cores;
what is left to wait for is each other.
"""

import argparse
import json
import sys
import time
from typing import Any

import torch

import paramfleet as fleet

__all__: list[str] = []

PAUSE_S = 0.012
"""What a step sleeps behind its computing."""

K_STEPS = 8
WIDTH = 128
BATCH = 16


class _Paced:
    """One worker's model and optimizer."""

    def __init__(self, *, is_sync: bool) -> None:
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = not is_sync
        if not is_sync:
            strategy.localsgd = True
            strategy.localsgd_configs = {"k_steps": K_STEPS}
        model = torch.nn.Sequential(
            torch.nn.Linear(64, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, 1),
        )
        self._is_sync = is_sync
        self._model = fleet.distributed_model(model)
        inner = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._optimizer = fleet.distributed_optimizer(inner, strategy)
        fleet.init_worker()
        self._slow = fleet.worker_index() == fleet.worker_num() - 1
        self._data = torch.Generator().manual_seed(fleet.worker_index())

    def obey(self, *, do: str, steps: int, slow: float = 1.0) -> dict[str, Any]:
        """Carry out one command of the driver.

        Args:
            do: ``warm`` or ``window``.
            steps: That a fast worker takes.
            slow: How many times as long the last worker's steps take.

        Raises:
            ValueError: if there is no such command.
        """
        if do not in {"warm", "window"}:
            msg = f"no command {do!r}; there are warm and window"
            raise ValueError(msg)
        factor = slow if self._slow else 1.0
        mine = steps if self._is_sync else max(1, round(steps / factor))
        fleet.barrier_worker()
        began = time.perf_counter()
        for _ in range(mine):
            self._step(factor)
        seconds = time.perf_counter() - began
        fleet.barrier_worker()
        return {"steps_per_s": mine / seconds, "seconds": seconds}

    def _step(self, factor: float) -> None:
        began = time.perf_counter()
        x = torch.randn(BATCH, 64, generator=self._data)
        loss = torch.nn.functional.mse_loss(self._model(x).squeeze(1), x.sum(1))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        computed_s = time.perf_counter() - began
        pause_s = factor * (computed_s + PAUSE_S) - computed_s
        time.sleep(pause_s)  # noqa: TID251 - what is measured is real time
        self._optimizer.step()
        self._optimizer.zero_grad()


def main() -> None:
    """Be a worker of a job, and do what standard input says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("localsgd", "sync"), default="localsgd")
    parser.add_argument("--driven", action="store_true", help="as always")
    options = parser.parse_args()
    fleet.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    worker = _Paced(is_sync=options.mode == "sync")
    for line in sys.stdin:
        print(json.dumps(worker.obey(**json.loads(line))), flush=True)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
