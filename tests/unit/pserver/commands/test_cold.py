"""A machine with rows on disk is the same as one that has all of them in memory."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.unit.pserver.cold import ColdShards
from tests.unit.pserver.commands.ending import run_to_end
from tests.unit.pserver.commands.histories import (
    Deed,
    History,
    Replica,
    deeds,
    specs_of,
)
from tests.unit.pserver.commands.test_snapshot import execute

from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Make
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables.blocks import NewShard
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.errors.tables import TierModeError, TierRowError
from paramfleet_shared.tables.disk.warming import warm_disk

MODES: tuple[Mode, ...] = ("sync", "async", "gpubox")


@pytest.fixture(scope="module", autouse=True)
def compiled_disk_kernels() -> None:
    """Compile them, or load them from the cache."""
    warm_disk()


@pytest.fixture
def few_rows() -> Iterator[NewShard]:
    """Return what makes shards with two or three rows in memory."""
    with ColdShards() as made:
        yield made


async def compare(
    mode: Mode, rule: str, history: list[Deed], cut: int, new_shard: NewShard
) -> None:
    of: Any = {"rate": "full", "elastic": False}
    one, other = Replica(mode, 2, **of), Replica(mode, 2, **of, new_shard=new_shard)
    maker = History(mode, one.store)
    if isinstance(one.machine.mode, PassMode):
        maker.book = one.machine.mode.book
    for each in (one, other):
        await each.execute([Make(specs_of(mode, "bfloat16", rule))])
    replicas = [one, other]
    try:
        await execute(one, maker, history[:cut], other)
        expected = await one.digest(same_owners=False)
        assert await other.digest(same_owners=False) == expected
        saved, cold = await one.snapshot(), await other.snapshot()
        replicas += [
            await Replica.restored(saved, new_shard=new_shard),
            await Replica.restored(cold, new_shard=new_shard),
            await Replica.restored(cold),
        ]
        for replica in replicas:
            assert await replica.digest(same_owners=False) == expected
        await execute(one, maker, history[cut:], replicas[3])
        expected = await one.digest(same_owners=False)
        assert await replicas[3].digest(same_owners=False) == expected
    finally:
        for replica in replicas:
            await replica.owners.close()


@given(
    mode=st.sampled_from(MODES),
    rule=st.sampled_from(["adagrad", "ctr", "adam"]),
    history=deeds(least=20),
    cut=st.integers(5, 25),
)
@settings(max_examples=60)
def test_it_answers_and_is_saved_and_restored_as_any(
    mode: Mode, rule: str, history: list[Deed], cut: int
) -> None:
    with ColdShards() as new_shard:
        run_to_end(compare(mode, rule, history, cut, new_shard))


async def test_changes_read_rows_from_disk(few_rows: NewShard) -> None:
    of: Any = {"rate": "full", "elastic": False}
    one, other = Replica("async", 2, **of), Replica("async", 2, **of, new_shard=few_rows)
    maker = History("async", one.store)
    for each in (one, other):
        await each.execute([Make(specs_of("async", "float32", "adagrad"))])
    deed = Deed("change", 0, 0, [], 0, "float32", ["rows", "half"], 1, False, 0.0, False)
    history = [
        replace(deed, ids=list(range(seed % 5, 40)), seed=seed, step=seed // 4)
        for seed in range(12)
    ]

    await execute(one, maker, history, other)

    assert await other.digest(same_owners=False) == await one.digest(same_owners=False)
    tables = [table for table in other.store if isinstance(table, SparseTable)]
    assert min(table.cold_facts()["cold_read"] for table in tables) > 100
    for each in (one, other):
        await each.owners.close()


async def test_a_mode_that_keeps_places_is_refused(few_rows: NewShard) -> None:
    replica = Replica("geo", 2, rate="full", elastic=False, new_shard=few_rows)

    with pytest.raises(TierModeError, match="mode geo needs all rows in the memory"):
        replica.store.check_mode("geo")

    replica.store.check_mode("async")
    await replica.owners.close()


async def test_rows_too_wide_for_a_disk_are_refused_before_there_are_any(
    few_rows: NewShard,
) -> None:
    of: Any = {"rate": "full", "elastic": False}
    replica = Replica("async", 2, **of, new_shard=few_rows)
    [spec, *_] = specs_of("async", "float32", "adagrad")

    with pytest.raises(TierRowError, match="40,000 bytes, and the maximum on disk is 16,384"):
        replica.store.check_limits([replace(spec, name="wide", dim=5000)])

    replica.store.check_limits([replace(spec, name="wide", dim=2048)])
    await replica.owners.close()
