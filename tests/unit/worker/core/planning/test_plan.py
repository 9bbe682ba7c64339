"""What a plan advises follows from memory, misses and the disk."""

import math
from dataclasses import replace

import pytest

from paramfleet_worker.core.planning.plan import (
    Load,
    Plan,
    RowSizes,
    Table,
    TierSizes,
    plan_table,
)

GIB = 1 << 30
TABLE = Table(ids=2_000_000_000, servers=8, exponent=1.05, memory_bytes=8 * GIB)
LOAD = Load(workers=4, batch=4096, slots=26, samples_per_s=None, device_reads_per_s=50_000.0)
SIZES = RowSizes(row=128, index=24, value=64)
TIER = TierSizes(
    pages=50 * GIB, num_pages=0, log=1, merged_keys=0, log_memory=1 << 27, policy=2
)


def planned(**changes: object) -> Plan:
    load = {name: value for name, value in changes.items() if hasattr(LOAD, name)}
    table = {name: value for name, value in changes.items() if hasattr(TABLE, name)}
    return plan_table(replace(TABLE, **table), replace(LOAD, **load), SIZES, TIER)  # type: ignore[arg-type]


def test_rows_that_fit_need_no_disk() -> None:
    plan = planned(memory_bytes=64 * GIB)

    assert plan.verdict == "memory"
    assert plan.disk is None
    assert plan.rows == 250_000_000
    assert plan.rows_memory == 250_000_000 * 128
    assert plan.index_memory == 250_000_000 * 24


def test_without_a_memory_nothing_is_judged() -> None:
    plan = planned(memory_bytes=None)

    assert plan.verdict == "unknown"
    assert "--memory" in plan.advice


def test_rows_that_do_not_fit_are_on_disk() -> None:
    plan = planned()

    assert plan.verdict == "tier"
    assert plan.disk is not None
    assert plan.disk.pages == 50 * GIB
    assert plan.misses is not None
    assert plan.misses.cached_rows == (int(0.8 * 8 * GIB) - (1 << 27)) // 154
    assert 0 < plan.misses.hottest < plan.misses.clock
    assert plan.misses.reads_per_s is None
    assert "45 pservers" in plan.advice


def test_reads_are_misses_of_the_samples_that_are_wanted() -> None:
    plan = planned(samples_per_s=10_000.0)

    assert plan.misses is not None
    assert plan.misses.reads_per_s == pytest.approx(plan.misses.clock * 10_000 / 8)
    assert plan.misses.requests_per_s == pytest.approx(3 * plan.misses.clock * 10_000 / 8)
    assert plan.verdict == "tier"


def test_rows_of_one_page_that_are_merged_at_once_share_its_requests() -> None:
    tier = replace(TIER, num_pages=1000, merged_keys=4000)

    plan = plan_table(TABLE, replace(LOAD, samples_per_s=10_000.0), SIZES, tier)

    assert plan.misses is not None
    assert plan.misses.reads_per_s is not None
    share = (1 - math.exp(-4)) / 4
    assert plan.misses.requests_per_s == pytest.approx(
        plan.misses.reads_per_s * (1 + 2 * share)
    )


def test_more_pservers_are_as_many_as_their_disks_need() -> None:
    plan = planned(samples_per_s=1_000_000.0)

    assert plan.verdict == "more_pservers"
    wanted = int(plan.advice.split("use ")[1].split(" ")[0])
    assert 8 < wanted < 45
    assert planned(samples_per_s=1_000_000.0, servers=wanted).verdict == "tier"
    assert planned(samples_per_s=1_000_000.0, servers=wanted - 1).verdict == "more_pservers"


def test_memory_must_hold_what_the_tier_itself_takes() -> None:
    plan = planned(memory_bytes=100 << 20)

    assert plan.verdict == "more_memory"
    assert plan.misses is not None
    assert plan.misses.cached_rows == 0


def test_each_workers_batch_goes_to_all_pservers() -> None:
    one, four = planned(workers=1).network, planned(workers=4).network

    assert four.rows == pytest.approx(4 * one.rows)
    assert one.pulled == pytest.approx(one.rows * (8 + 64))
    assert 8 * one.rows < 4096 * 26
