"""Pulls and pushes of rows on Paddle: ``python rows.py OPTIONS``; OPTIONS are JSON.

Paddle has no function for a pull or a push, only operators: each call here runs a program
of one or two of them.
"""

import json
import sys
import time

import job  # before Paddle, whose output it keeps from the driver
import numpy as np
import paddle
from paddle.distributed import fleet

LR = 2.0**-6
SEED = 20240229
MAX_BATCHES, MAX_ROWS = 64, 2_000_000
"""Different batches: Paddle merges pushes that wait, and less when their rows differ."""
CHUNK = 100_000


def main(*, shard_num: int | None, dim: int, table_rows: int) -> None:
    """Be what the environment says."""
    job.begin()
    (ids,) = job.slots(["ids"])
    grads = paddle.static.data("grads", [-1, dim], "float32")
    rows = paddle.static.nn.sparse_embedding(
        ids, [table_rows + 1, dim], param_attr=paddle.ParamAttr(name="rows")
    )
    loss = paddle.sum(paddle.reshape(rows, [-1, dim]) * grads)
    mine = job.Job(loss, paddle.optimizer.SGD(LR), strategy(shard_num))
    calls = Calls(mine, dim, table_rows)
    mine.obey({"fill": calls.fill, "calls": calls.calls})


def strategy(shard_num: int | None) -> fleet.DistributedStrategy:
    """Return a strategy whose table steps by SGD: left alone, it would by Adam."""
    table = "table_parameters.rows."
    configs: dict[str, str | int] = {
        f"{table}table_class": "MemorySparseTable",
        f"{table}accessor.accessor_class": "SparseAccessor",
        f"{table}accessor.embed_sgd_param.name": "SparseNaiveSGDRule",
        f"{table}accessor.embedx_sgd_param.name": "SparseNaiveSGDRule",
    }
    if shard_num is not None:
        configs[f"{table}shard_num"] = shard_num
    chosen = fleet.DistributedStrategy()
    chosen.a_sync = True
    chosen.sparse_table_configs = {"rows": configs}
    return chosen


class Calls:
    """Calls of one worker on one table.

    Args:
        mine: The worker.
        dim: Floats of a row.
        table_rows: Rows of the table.
    """

    def __init__(self, mine: job.Job, dim: int, table_rows: int) -> None:
        self._job = mine
        self._dim = dim
        self._table_rows = table_rows
        self._programs = {
            "pull": program(dim, pull=True),
            "push": program(dim, push=True),
            "pull then push": program(dim, pull=True, push=True),
        }
        self._batches: dict[int, list[dict[str, np.ndarray]]] = {}

    def fill(self) -> None:
        """Make the rows: a push does, a pull does not."""
        for start in range(0, self._table_rows, CHUNK):
            ids = np.arange(start, min(start + CHUNK, self._table_rows), dtype=np.int64) + 1
            grads = np.full((len(ids), self._dim), 1 / len(ids), np.float32)
            self._run("push", {"ids": ids[:, None], "grads": grads})
        self._job.flush()

    def calls(self, kind: str, rows: int, seconds: float) -> dict[str, float]:
        """Call for about so many seconds, one call after the other; then wait for pushes."""
        batches = self._batches.setdefault(rows, self._batches_of(rows))
        self._run(kind, batches[-1])
        self._job.flush()
        num = 0
        start = time.perf_counter()
        while not num or time.perf_counter() - start < seconds:
            self._run(kind, batches[num % len(batches)])
            num += 1
        called_s = time.perf_counter() - start
        return {"rows_per_s": rows * num / (called_s + self._job.flush())}

    def _run(self, kind: str, feed: dict[str, np.ndarray]) -> None:
        given = {"ids": feed["ids"]} if kind == "pull" else feed
        found = None if kind == "push" else ["rows_found"]
        self._job.executor.run(self._programs[kind], feed=given, fetch_list=found)

    def _batches_of(self, rows: int) -> list[dict[str, np.ndarray]]:
        rng = np.random.default_rng((SEED, rows))
        return [
            {
                "ids": rng.permutation(self._table_rows)[:rows, None].astype(np.int64) + 1,
                "grads": rng.standard_normal((rows, self._dim), np.float32)
                * np.float32(2.0**-12),
            }
            for _ in range(min(MAX_BATCHES, MAX_ROWS // rows))
        ]


def program(dim: int, *, pull: bool = False, push: bool = False) -> paddle.static.Program:
    """Return a program of the operators that the trained one has for its table."""
    made = paddle.static.Program()
    block = made.global_block()
    ids = block.create_var(name="ids", shape=[-1, 1], dtype="int64")
    table = {"is_distributed": True, "padding_idx": -1, "table_id": 0}
    if pull:
        found = block.create_var(name="rows_found", shape=[-1, dim], dtype="float32")
        block.append_op(
            type="distributed_lookup_table",
            inputs={"Ids": [ids], "W": job.rows_variable(block, "rows", dim)},
            outputs={"Outputs": [found]},
            attrs={**table, "lookup_table_version": "lookup_table"},
        )
    if push:
        grads = block.create_var(name="grads", shape=[-1, dim], dtype="float32")
        counts = {}
        for name, value in (("Shows", 1.0), ("Clicks", 0.0)):
            counts[name] = block.create_var(name=name, shape=[1], dtype="float32")
            block.append_op(
                type="fill_constant",
                outputs={"Out": counts[name]},
                attrs={"shape": [1], "dtype": counts[name].dtype, "value": value},
            )
        block.append_op(
            type="distributed_push_sparse",
            inputs={"Ids": [ids], "Outputs": [grads], **counts},
            outputs={"Outputs": [grads]},
            attrs={**table, "size": dim, "use_cvm_op": False, "slots": [0]},
        )
    return made


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
