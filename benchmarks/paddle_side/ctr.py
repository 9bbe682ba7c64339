"""``work/ctr.py`` on Paddle: ``python ctr.py OPTIONS``, as any role; OPTIONS are JSON."""

import json
import sys
import tempfile
from pathlib import Path

import job  # before Paddle, whose output it keeps from the driver
import numpy as np
import paddle
from paddle.distributed import fleet

from clicks import NUM_DENSE, NUM_IDS, NUM_SLOTS, Clicks, make_clicks

HELD_OUT_SEED = 1_000_003
HELD_OUT = 20_480
WIDTHS = (512, 256, 128, 32)
DIM = 9
SHARD_NUM = 8
"""Paddle's own default, 1000, is slower."""


def main(*, mode: str, k_steps: int, lr: float, steps: int, windows: int, batch: int) -> None:
    """Be what the environment says."""
    job.begin()
    ids = job.slots([f"slot{slot}" for slot in range(NUM_SLOTS)])
    dense = paddle.static.data("dense", [-1, NUM_DENSE], "float32")
    label = paddle.static.data("label", [-1, 1], "float32")
    logits = network(ids, dense, is_local=mode == "geo")
    loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, label)
    mine = job.Job(loss, optimizer(mode, lr), strategy(mode, k_steps))
    scored = job.copy_for_scoring(mine.program)

    def quality() -> dict[str, float]:
        if mode != "geo":
            mine.pull_dense()
        held_out = make_clicks(HELD_OUT, seed=HELD_OUT_SEED)
        # Paddle's trainer drops what an executor remembers of a program.
        executor = paddle.static.Executor(paddle.CPUPlace())
        scores = [
            executor.run(scored, feed=feed_of(held_out, at), fetch_list=[logits.name])[0]
            for at in np.split(np.arange(HELD_OUT), HELD_OUT // 2048)
        ]
        return quality_of(np.concatenate(scores).ravel(), held_out.labels)

    clicks = make_clicks(batch * steps * windows, seed=fleet.worker_index())
    with tempfile.TemporaryDirectory() as folder:
        files = [
            write(clicks, slice(start, start + batch * steps), Path(folder) / str(start))
            for start in range(0, len(clicks.labels), batch * steps)
        ]
        passes = job.Windows(mine, [*ids, dense, label], files, batch_size=batch)
    mine.obey({"window": passes.window, "quality": quality})


def network(
    ids: list[paddle.static.Variable], dense: paddle.static.Variable, *, is_local: bool
) -> paddle.static.Variable:
    """Return logits [B, 1]: one embedding for all slots and a tower on top."""
    attributes = paddle.ParamAttr(
        name="rows", initializer=paddle.nn.initializer.Uniform(-0.05, 0.05)
    )
    size = [NUM_IDS + 1, DIM]

    def look_up(slot: paddle.static.Variable) -> paddle.static.Variable:
        if is_local:
            rows = paddle.static.nn.embedding(slot, size, is_sparse=True, param_attr=attributes)
        else:
            rows = paddle.static.nn.sparse_embedding(slot, size, param_attr=attributes)
        return paddle.reshape(rows, [-1, DIM])

    hidden = paddle.concat([*map(look_up, ids), dense], axis=1)
    for width in WIDTHS:
        hidden = paddle.static.nn.fc(hidden, width, activation="relu")
    return paddle.static.nn.fc(hidden, 1)


def optimizer(mode: str, lr: float) -> paddle.optimizer.Optimizer:
    """Return Adam, and for GEO SGD."""
    return paddle.optimizer.SGD(lr) if mode == "geo" else paddle.optimizer.Adam(lr)


def strategy(mode: str, k_steps: int) -> fleet.DistributedStrategy:
    """Return the job's strategy."""
    chosen = fleet.DistributedStrategy()
    chosen.a_sync = True
    if mode == "geo":
        chosen.a_sync_configs = {"k_steps": k_steps}
    else:
        table = "table_parameters.rows."
        chosen.sparse_table_configs = {
            "rows": {
                f"{table}table_class": "MemorySparseTable",
                f"{table}shard_num": SHARD_NUM,
            }
        }
    return chosen


def feed_of(clicks: Clicks, at: np.ndarray) -> dict[str, np.ndarray]:
    """Return some examples as a feed. Id 0 is special to Paddle: ids begin at 1."""
    ids = {f"slot{slot}": clicks.ids[at, slot : slot + 1] + 1 for slot in range(NUM_SLOTS)}
    return {**ids, "dense": clicks.dense[at], "label": clicks.labels[at, None]}


def write(clicks: Clicks, at: slice, path: Path) -> Path:
    """Write examples as Paddle's text: of each slot how many numbers, then the numbers."""
    with path.open("w") as file:
        for ids, dense, label in zip(
            clicks.ids[at] + 1, clicks.dense[at], clicks.labels[at], strict=True
        ):
            slots = " ".join(f"1 {one}" for one in ids.tolist())
            numbers = " ".join(f"{one:.7g}" for one in dense.tolist())
            file.write(f"{slots} {NUM_DENSE} {numbers} 1 {label:g}\n")
    return path


def quality_of(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return AUC and mean loss."""
    order = np.argsort(logits, kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    positives = labels.sum()
    pairs = positives * (len(labels) - positives)
    wins = ranks[labels > 0].sum() - positives * (positives + 1) / 2
    losses = np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0) - logits * labels
    return {"auc": float(wins / pairs), "loss": float(losses.mean())}


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
