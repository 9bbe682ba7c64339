"""What each pserver of a table needs: memory, disk, network, reads; and what to do."""

import math
from dataclasses import dataclass
from typing import Literal

from paramfleet_worker.core.doctor.machine import HEADROOM
from paramfleet_worker.core.planning.caching import clock_misses, hottest_misses, unique_rows
from paramfleet_worker.core.planning.popularity import Popularity

__all__ = [
    "Disk",
    "Load",
    "Misses",
    "Network",
    "Plan",
    "RowSizes",
    "Table",
    "TierSizes",
    "Verdict",
    "cached_rows",
    "plan_table",
]

Verdict = Literal["memory", "tier", "more_pservers", "more_memory", "unknown"]
"""``unknown``: nobody has said how much memory there is."""

ID_BYTES = 8
"""Of an id in a request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """What is known of a table and of its pservers."""

    ids: int
    """That have a row."""
    servers: int
    exponent: float
    """Of Zipf's law, by which ids are used; 0: equally often."""
    memory_bytes: int | None
    """Of each pserver's machine or container."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How the table is used."""

    workers: int
    batch: int
    """Samples of a worker's batch."""
    slots: int
    """Ids of a sample."""
    samples_per_s: float | None
    """That are wanted, of all workers together."""
    device_reads_per_s: float
    """Of pages, that the disk of a pserver can do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSizes:
    """Bytes of a row, by its layout."""

    row: int
    index: int
    """Its part of the index, at most."""
    value: int
    """As a pull or a push sends it, in float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TierSizes:
    """Bytes of the tier on the disk of a pserver that has all of its rows."""

    pages: int
    num_pages: int
    log: int
    """While as many keys are in the log as may be."""
    merged_keys: int
    """Of the log, that go to pages at once."""
    log_memory: int
    """For the keys of the log."""
    policy: int
    """In memory, for each row there: of what is known of its use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """Bytes on the disk of a pserver."""

    pages: int
    log: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Bytes of a step for a pserver, from or to all workers together.

    At most: ids that the pserver knows already travel as numbers.
    """

    rows: float
    """Of all workers' batches, each counted for itself."""
    pulled: float
    pushed: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Misses:
    """What the rows in memory leave to the disk."""

    cached_rows: int
    """Of a pserver."""
    clock: float
    """Rows a sample that are read from disks, with a clock."""
    hottest: float
    """With the hottest rows in memory for ever: no policy misses less."""
    reads_per_s: float | None
    """Of a pserver's disk, with a clock."""
    requests_per_s: float | None
    """With those of merges: a row that was changed goes back to its page, which is read and
    written, and takes with it those of the same page that are merged at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What each pserver needs."""

    servers: int
    rows: int
    row_bytes: int
    index_bytes: int
    """A row."""
    rows_memory: int
    index_memory: int
    usable_memory: int | None
    """What of the memory tables may take."""
    network: Network
    disk: Disk | None
    """None where all rows are in memory."""
    misses: Misses | None
    verdict: Verdict
    advice: str


def plan_table(table: Table, load: Load, sizes: RowSizes, tier: TierSizes | None) -> Plan:
    """Return what each pserver needs.

    Args:
        table: The table.
        load: How it is used.
        sizes: Of a row.
        tier: What a pserver would have on its disk; None for rows that are too wide for one.
    """
    popularity = Popularity.zipf(table.ids, table.exponent)
    rows = -(-table.ids // table.servers)
    usable = None if table.memory_bytes is None else int(HEADROOM * table.memory_bytes)
    needed = rows * (sizes.row + sizes.index)
    misses = disk = None
    if usable is None or needed <= usable:
        verdict: Verdict = "unknown" if usable is None else "memory"
        advice = (
            "say how much memory a pserver has: --memory"
            if usable is None
            else f"all rows fit in memory, which they use {needed / usable:.0%} of"
        )
    elif tier is None:
        verdict = "more_pservers"
        enough = _pservers_for(table, sizes, usable)
        advice = f"rows of {sizes.row:,} bytes are too wide for a disk; {_whole(enough)}"
    else:
        disk = Disk(pages=tier.pages, log=tier.log)
        cached = cached_rows(usable, sizes, tier)
        misses = _misses(table, load, popularity, cached, _pages_a_row(tier))
        verdict, advice = _judge(table, load, popularity, misses, (sizes, tier, usable))
    return Plan(
        servers=table.servers,
        rows=rows,
        row_bytes=sizes.row,
        index_bytes=sizes.index,
        rows_memory=rows * sizes.row,
        index_memory=rows * sizes.index,
        usable_memory=usable,
        network=_network(table, load, popularity, sizes),
        disk=disk,
        misses=misses,
        verdict=verdict,
        advice=advice,
    )


def cached_rows(usable: int, sizes: RowSizes, tier: TierSizes) -> int:
    """Return how many rows have a place in memory beside the tier."""
    return max(0, (usable - tier.log_memory) // (sizes.row + sizes.index + tier.policy))


def _pages_a_row(tier: TierSizes) -> float:
    """Return how many pages a merge reads, and writes, for each row."""
    rows_a_page = tier.merged_keys / max(1, tier.num_pages)
    return -math.expm1(-rows_a_page) / rows_a_page if rows_a_page else 1.0


def _misses(
    table: Table, load: Load, popularity: Popularity, cached: int, pages_a_row: float
) -> Misses:
    references = float(load.batch * load.slots)
    places = float(cached * table.servers)
    clock = clock_misses(popularity, references, places) / load.batch
    reads = None
    if load.samples_per_s is not None:
        reads = clock * load.samples_per_s / table.servers
    return Misses(
        cached_rows=cached,
        clock=clock,
        hottest=hottest_misses(popularity, references, places) / load.batch,
        reads_per_s=reads,
        requests_per_s=None if reads is None else reads * (1 + 2 * pages_a_row),
    )


def _judge(
    table: Table,
    load: Load,
    popularity: Popularity,
    misses: Misses,
    memory: tuple[RowSizes, TierSizes, int],
) -> tuple[Verdict, str]:
    """Return what to do where not all rows fit in memory."""
    sizes, tier, usable = memory
    enough = _pservers_for(table, sizes, usable)
    whole = _whole(enough)
    if not misses.cached_rows:
        return "more_memory", (
            f"beside {tier.log_memory:,} bytes for the log of rows on disk there is no memory "
            f"for rows; {whole}"
        )
    requests = misses.requests_per_s
    if requests is None:
        return "tier", f"the other rows are on disk; {whole}"
    if requests <= load.device_reads_per_s:
        share = requests / load.device_reads_per_s
        return "tier", (f"the other rows are on disk, which is used to {share:.0%}; {whole}")
    factor = requests / misses.reads_per_s if misses.reads_per_s else 1.0
    low, high = table.servers, enough
    while high - low > 1:
        middle = (low + high) // 2
        places = float(middle * misses.cached_rows)
        batch = clock_misses(popularity, float(load.batch * load.slots), places)
        assert load.samples_per_s is not None, "reads are of it"
        wanted = factor * batch / load.batch * load.samples_per_s / middle
        low, high = (middle, high) if wanted > load.device_reads_per_s else (low, middle)
    return "more_pservers", (
        f"the disk does {load.device_reads_per_s:,.0f} requests per second: use {high:,} "
        f"pservers; "
        f"{whole}"
    )


def _pservers_for(table: Table, sizes: RowSizes, usable: int) -> int:
    """Return how many pservers have all rows in memory."""
    return -(-table.ids * (sizes.row + sizes.index) // max(1, usable))


def _whole(pservers: int) -> str:
    return f"all rows fit in the memory of {pservers:,} pservers"


def _network(table: Table, load: Load, popularity: Popularity, sizes: RowSizes) -> Network:
    unique = unique_rows(popularity, float(load.batch * load.slots))
    rows = load.workers * unique / table.servers
    each = ID_BYTES + sizes.value
    return Network(rows=rows, pulled=rows * each, pushed=rows * each)
