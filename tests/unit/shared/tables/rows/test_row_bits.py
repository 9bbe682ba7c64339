"""The bits and the bytes of rows, by rule and storage: they change on purpose only."""

from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

DIMS = (1, 3, 16, 37)
STORAGES: tuple[Any, ...] = ("float32", "float16", "bfloat16")


def table(rule: str, storage: Any, dim: int) -> TableSpec:
    constants: dict[str, Any] = {"initial_accumulator_value": 0.1} if rule == "adagrad" else {}
    return TableSpec(
        name="clicks",
        kind="sparse",
        dim=dim,
        seed=7,
        initializer=InitializerSpec(kind="normal", std=0.1),
        optimizer=OptimizerSpec(rule=rule, **constants),
        storage=storage,
    )


def trained(spec: TableSpec) -> SparseShard:
    """Return rows that were created, stepped, assigned, removed and created anew."""
    shard, rng = SparseShard(spec, max_rows=1000), np.random.default_rng(spec.dim)
    ids = rng.integers(-(2**63), 2**63, 300, np.int64)
    out = np.empty((300, spec.dim), np.float32)
    shard.pull(ids[:100], out[:100], create=True)
    for step, unique in enumerate((True, False, True), start=1):
        grads = rng.standard_normal((200, spec.dim), np.float32)
        some = rng.permutation(ids[:200]) if unique else rng.choice(ids[:200], 200)
        shard.push(some, grads, lr=0.05, step=step, unique=unique)
    given, values, states = shard.export(0, 50)
    shard.assign(given, values * np.float32(0.3), states * np.float32(1.7))
    shard.release(shard.remove(ids[20:60]))
    shard.create(ids[200:280])
    half = rng.standard_normal((100, spec.dim), np.float32).view(np.uint32) >> 16
    shard.push(ids[200:], half.astype(np.uint16), lr=0.05, step=4, unique=True)
    shard.pull(ids, out, create=False)
    return shard


def digest(rule: str, storage: Any) -> str:
    """Return a hash of all rows of tables of several widths."""
    found = blake2b(digest_size=8)
    for dim in DIMS:
        for array in trained(table(rule, storage, dim)).export(0, 1000):
            found.update(f"{array.dtype.str}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def row_bytes(spec: TableSpec) -> int:
    """Return what a row takes beside the index."""
    few, many = SparseShard(spec, max_rows=9), SparseShard(spec, max_rows=9)
    many.create(np.arange(8))
    return many.num_bytes - few.num_bytes - 8 * 8  # ids


OF_VALUES = [name for name, rule in RULES.items() if rule.formulas]
"""Rules whose rows have no statistics."""

ROWS = {
    ("sgd", "float32"): "405120cc9957f59f",
    ("sgd", "float16"): "788b2bf3448df7c9",
    ("sgd", "bfloat16"): "6aaedbd4197cfdae",
    ("momentum", "float32"): "ed8e3f21edee4786",
    ("momentum", "float16"): "13cdf5083ed3bbd6",
    ("momentum", "bfloat16"): "62ce5367d4a1d0d6",
    ("adagrad", "float32"): "a307764fcb7d6046",
    ("adagrad", "float16"): "1fdfc76bc248de3b",
    ("adagrad", "bfloat16"): "3e69821291d2e9e2",
    ("adam", "float32"): "2b84e8e57c6d9443",
    ("adam", "float16"): "dce5cc5af67cf3b5",
    ("adam", "bfloat16"): "35c943ca2a70e4b1",
    ("sum", "float32"): "8fa9b6a663351da6",
    ("sum", "float16"): "2af64c82b00c03d1",
    ("sum", "bfloat16"): "5efbb60cb0c48401",
    ("adamw", "float32"): "2b84e8e57c6d9443",
    ("adamw", "float16"): "dce5cc5af67cf3b5",
    ("adamw", "bfloat16"): "35c943ca2a70e4b1",
    ("rowwise_adagrad", "float32"): "23d1de9cffe36237",
    ("rowwise_adagrad", "float16"): "4bd356a0d289fab9",
    ("rowwise_adagrad", "bfloat16"): "3535048b96559e01",
    ("ftrl", "float32"): "c0a684732e0e0cbb",
    ("ftrl", "float16"): "dd3e59e503443295",
    ("ftrl", "bfloat16"): "117068715c1aadd9",
}
"""Of what ``trained`` exports, by rule and storage."""

BYTES = {
    ("sgd", "float32"): [4, 12, 64, 148],
    ("sgd", "float16"): [4, 8, 32, 76],
    ("sgd", "bfloat16"): [4, 8, 32, 76],
    ("momentum", "float32"): [8, 24, 128, 296],
    ("momentum", "float16"): [8, 20, 96, 224],
    ("momentum", "bfloat16"): [8, 20, 96, 224],
    ("adagrad", "float32"): [8, 24, 128, 296],
    ("adagrad", "float16"): [8, 20, 96, 224],
    ("adagrad", "bfloat16"): [8, 20, 96, 224],
    ("adam", "float32"): [12, 36, 192, 444],
    ("adam", "float16"): [12, 32, 160, 372],
    ("adam", "bfloat16"): [12, 32, 160, 372],
    ("sum", "float32"): [4, 12, 64, 148],
    ("sum", "float16"): [4, 8, 32, 76],
    ("sum", "bfloat16"): [4, 8, 32, 76],
    ("adamw", "float32"): [12, 36, 192, 444],
    ("adamw", "float16"): [12, 32, 160, 372],
    ("adamw", "bfloat16"): [12, 32, 160, 372],
    ("rowwise_adagrad", "float32"): [8, 16, 68, 152],
    ("rowwise_adagrad", "float16"): [8, 12, 36, 80],
    ("rowwise_adagrad", "bfloat16"): [8, 12, 36, 80],
    ("ftrl", "float32"): [12, 36, 192, 444],
    ("ftrl", "float16"): [12, 32, 160, 372],
    ("ftrl", "bfloat16"): [12, 32, 160, 372],
}
"""Of rows of ``DIMS`` values, without their ids and the index."""


@pytest.mark.parametrize("rule", OF_VALUES)
@pytest.mark.parametrize("storage", STORAGES)
def test_rows_have_the_bits_that_they_always_had(rule: str, storage: Any) -> None:
    assert digest(rule, storage) == ROWS[rule, storage]


@pytest.mark.parametrize("rule", OF_VALUES)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_row_takes_the_bytes_that_it_always_took(rule: str, storage: Any) -> None:
    assert [row_bytes(table(rule, storage, dim)) for dim in DIMS] == [
        8 * num_bytes for num_bytes in BYTES[rule, storage]
    ]
