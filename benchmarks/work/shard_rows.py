"""One shard of a sparse table in one thread, driven by lines: its kernels, no network.

Standard input has a JSON object a line: ``warm`` fills the table, ``window`` takes so many
steps of a case.
"""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from collections.abc import Callable

DIM = 16
BATCH = 4096 * 26
NUM_BATCHES = 8


class Driver:
    """The shard, and its cases by name.

    Args:
        rows: How many the table has.
        rule: Its optimizer.
    """

    def __init__(self, rows: int, rule: Any) -> None:
        spec = TableSpec(
            name="rows",
            kind="sparse",
            dim=DIM,
            initializer=InitializerSpec(kind="uniform", low=-0.01, high=0.01),
            optimizer=OptimizerSpec(rule=rule),
        )
        dice = np.random.default_rng(1)
        self._num_rows = rows
        self._shard = SparseShard(spec, max_rows=2 * rows + BATCH)
        self._new = rows
        self._batches = [
            dice.permutation(np.unique(dice.integers(0, rows, BATCH)))
            for _ in range(NUM_BATCHES)
        ]
        self._values = np.zeros((BATCH, DIM), np.float32)
        self._grads = dice.standard_normal((BATCH, DIM), np.float32)
        self._turn = 0
        self._cases: dict[str, Callable[[NDArray[np.int64]], object]] = {
            "find": self._shard.find,
            "pull": self._pull,
            "step": self._step,
        }

    def warm(self, *, steps: int) -> None:
        """Fill the table, and run each case so often."""
        for start in range(0, self._num_rows, BATCH):
            ids = np.arange(start, min(start + BATCH, self._num_rows))
            self._shard.pull(ids, self._values[: ids.size], create=True)
        for case in self._cases:
            self.window(steps=steps, case=case)

    def window(self, *, steps: int, case: str) -> dict[str, float]:
        """Return rows a second of a case over so many batches, and the seconds they took."""
        num_rows, begin = 0, time.perf_counter()
        for _ in range(steps):
            ids = self._batches[self._turn % NUM_BATCHES]
            self._turn += 1
            self._cases[case](ids)
            num_rows += ids.size
        seconds = time.perf_counter() - begin
        return {"samples_per_s": num_rows / seconds, "seconds": seconds}

    def _pull(self, ids: NDArray[np.int64]) -> None:
        self._shard.pull(ids, self._values[: ids.size], create=False)

    def _step(self, ids: NDArray[np.int64]) -> None:
        self._shard.push(ids, self._grads[: ids.size], lr=0.01, step=1, unique=True)


def main() -> None:
    """Answer each line until the input ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rule", default="adagrad")
    options = parser.parse_args()
    driver = Driver(options.rows, options.rule)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(driver, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
