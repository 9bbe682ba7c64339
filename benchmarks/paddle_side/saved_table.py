"""A tiny model of clicks that Paddle trains and saves: ``python saved_table.py OPTIONS``."""

import json
import sys
from pathlib import Path

import job  # before Paddle, whose output it keeps from the driver
import numpy as np
import paddle
from paddle.distributed import fleet

NUM_SLOTS, NUM_IDS, BATCH = 3, 24, 32
RULES = {  # rows that are extended begin with 0: Paddle's random numbers can't be known
    "SparseAdaGradSGDRule": {
        "adagrad.learning_rate": 0.05,
        "adagrad.initial_g2sum": 3.0,
        "adagrad.initial_range": 0.0,
        "adagrad.weight_bounds": [-10.0, 10.0],
    },
    "SparseAdamSGDRule": {
        "adam.learning_rate": 0.01,
        "adam.initial_range": 0.0,
        "adam.beta1_decay_rate": 0.9,
        "adam.beta2_decay_rate": 0.999,
        "adam.ada_epsilon": 1e-8,
        "adam.weight_bounds": [-10.0, 10.0],
    },
}
M = 4
"""Weights of a row behind the first one."""


def main(*, accessor: str, rule: str, mode: int) -> None:
    """Be what the environment says."""
    job.begin()
    has_counts = accessor == "CtrCommonAccessor"
    dim = 1 + M + 2 * has_counts
    ids = job.slots([f"slot{slot}" for slot in range(NUM_SLOTS)])
    click = paddle.static.data("click", [-1, 1], "float32")
    show = paddle.static.data("show", [-1, 1], "float32")
    attributes = paddle.ParamAttr(name="rows")
    entry = paddle.distributed.ShowClickEntry("show", "click")
    features = []
    for slot in ids:
        rows = paddle.static.nn.sparse_embedding(
            slot, [NUM_IDS + 1, dim], param_attr=attributes, entry=entry
        )
        rows = paddle.reshape(rows, [-1, dim])
        if has_counts:
            cvm = paddle.concat([show, click], axis=1)
            cvm.stop_gradient = True
            rows = paddle.static.nn.continuous_value_model(rows, cvm, use_cvm=True)
        features.append(rows)
    logits = paddle.static.nn.fc(
        paddle.concat(features, axis=1),
        1,
        weight_attr=paddle.ParamAttr(name="weight"),
        bias_attr=paddle.ParamAttr(name="bias"),
    )
    loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, click)
    mine = job.Job(loss, paddle.optimizer.SGD(0.1), strategy(accessor, rule))
    scored = job.copy_for_scoring(mine.program)

    def train(first: int, steps: int) -> list[dict[str, object]]:
        """Take steps, each with what the ones before have made; return their examples."""
        feeds = [examples(seed=step) for step in range(first, first + steps)]
        for feed in feeds:
            mine.executor.run(mine.program, feed=feed)
            mine.flush()
            mine.pull_dense()
        return [
            {"ids": ids_of(feed), "click": feed["click"].ravel().tolist()} for feed in feeds
        ]

    def predict() -> dict[str, object]:
        mine.pull_dense()
        scope = paddle.static.global_scope()
        dense = {
            name: np.array(scope.find_var(name).get_tensor()).ravel().tolist()
            for name in ("weight", "bias")
        }
        feed = examples(seed=1_000)
        executor = paddle.static.Executor(paddle.CPUPlace())
        (found,) = executor.run(scored, feed=feed, fetch_list=[logits.name])
        return {**dense, "ids": ids_of(feed), "logits": found.ravel().tolist()}

    def save(folder: str) -> list[str]:
        fleet.save_persistables(mine.executor, folder, mine.program, mode=mode)
        return sorted(str(path) for path in Path(folder).rglob("*"))

    mine.obey({"train": train, "predict": predict, "save": save})


def ids_of(feed: dict[str, np.ndarray]) -> list[list[int]]:
    """Return the ids of a batch, an example a line."""
    slots = [feed[f"slot{slot}"] for slot in range(NUM_SLOTS)]
    found: list[list[int]] = np.concatenate(slots, axis=1).tolist()
    return found


def examples(*, seed: int) -> dict[str, np.ndarray]:
    """Return a batch. Id 0 is special to Paddle: ids begin at 1."""
    rng = np.random.default_rng(seed)
    # the lower an id the more often it comes
    ids = (NUM_IDS * rng.random((BATCH, NUM_SLOTS)) ** 3).astype(np.int64) + 1
    clicked = rng.random(BATCH) < 0.15 + 0.5 * (ids.sum(axis=1) % 3 == 0)
    feed = {f"slot{slot}": ids[:, slot : slot + 1] for slot in range(NUM_SLOTS)}
    feed["click"] = clicked[:, None].astype(np.float32)
    feed["show"] = np.ones((BATCH, 1), np.float32)
    return feed


def strategy(accessor: str, rule: str) -> fleet.DistributedStrategy:
    """Return a strategy that says all of the table that Paddle would take otherwise."""
    table = "table_parameters.rows."
    chosen = fleet.DistributedStrategy()
    chosen.a_sync = True
    chosen.sparse_table_configs = {
        "rows": {
            f"{table}table_class": "MemorySparseTable",
            f"{table}shard_num": 2,
            f"{table}accessor.accessor_class": accessor,
            f"{table}accessor.embedx_dim": M,
            f"{table}accessor.fea_dim": M + 3,
            f"{table}accessor.embedx_threshold": 6,
            f"{table}accessor.ctr_accessor_param.nonclk_coeff": 0.1,
            f"{table}accessor.ctr_accessor_param.click_coeff": 1.0,
            f"{table}accessor.ctr_accessor_param.show_scale": True,
            **{
                f"{table}accessor.{part}_sgd_param.{key}": value
                for part in ("embed", "embedx")
                for key, value in {"name": rule, **RULES[rule]}.items()
            },
        }
    }
    return chosen


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
