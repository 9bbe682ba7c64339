"""``paramfleet plan``: reads the options, and says what follows from them."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

import click
from typing_extensions import override

from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.cli import BoundedCommand
from paramfleet_shared.tables.disk.measuring import UNMEASURED
from paramfleet_shared.tables.disk.tier import MAX_ROW_BYTES
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.ctr.accessor import CTR
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.spec import Storage, TableSpec
from paramfleet_worker.app.commands.arguments import JSON, FiniteRange, show
from paramfleet_worker.app.planning.sizes import row_sizes, spec_for, tier_sizes
from paramfleet_worker.core.doctor.machine import HEADROOM
from paramfleet_worker.core.planning.plan import Load, Plan, Table, plan_table

__all__ = ["plan"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)(?:i?B)?", re.ASCII)
_MOST_IDS = 1 << 63


class _Count(click.ParamType[int]):
    """A whole number, also as 2e9."""

    name = "number"

    @override
    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            number = float(value)
        except ValueError:
            self.fail("say a number, as 2e9", param, ctx)
        if not math.isfinite(number) or not 1 <= number < _MOST_IDS or number % 1:
            self.fail(f"say a whole number from 1 to {_MOST_IDS:,}", param, ctx)
        return int(value) if str(value).isdecimal() else int(number)


class _Bytes(click.ParamType[int]):
    """Bytes, also as 32G: units are powers of 1024."""

    name = "bytes"

    @override
    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value)
        if found is None:
            self.fail("say bytes as 512M, 32G or 1.5T", param, ctx)
        size = round(float(found[1]) * _UNITS[found[2]])
        if not size:
            self.fail("say 1 byte or more", param, ctx)
        return size


@click.command(cls=BoundedCommand)
@click.option("--ids", type=_Count(), required=True, help="Number of ids, as 2e9.")
@click.option(
    "--dim",
    type=click.IntRange(min=1),
    required=True,
    help="Length of a row, as embedding_dim of Embedding.",
)
@click.option(
    "--optimizer",
    type=click.Choice(sorted(set(RULES) - {CTR.name})),
    default="adagrad",
    show_default=True,
    help="Optimizer of the table, whose states are stored with the rows; not used with "
    "--accessor.",
)
@click.option(
    "--accessor",
    type=click.Choice(sorted(PART_RULES)),
    help="The table has a CtrAccessor with this optimizer rule.",
)
@click.option(
    "--storage",
    type=click.Choice(get_args(Storage)),
    default="float32",
    show_default=True,
    help="Number format in which the pservers store values.",
)
@click.option(
    "--servers", type=click.IntRange(1, 65_536), required=True, help="Number of pservers."
)
@click.option(
    "--owner-threads",
    type=click.IntRange(1, 1024),
    default=4,
    show_default=True,
    help="Threads of each pserver that work on tables. With rows on disk, a pserver uses all "
    "of up to 4 cores, or half of its cores, at most 8, if not set otherwise.",
)
@click.option("--memory", type=_Bytes(), help="Memory of each pserver, as 32G.")
@click.option(
    "--zipf",
    "exponent",
    type=FiniteRange(0.0, 4.0),
    default=1.05,
    show_default=True,
    help="Exponent of the Zipf distribution of ids; 0 means that all are equally frequent.",
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True,
              help="Number of workers.")  # fmt: skip
@click.option(
    "--batch",
    type=click.IntRange(1, 1 << 30),
    default=4096,
    show_default=True,
    help="Examples in the batch of one worker.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 1 << 20),
    default=26,
    show_default=True,
    help="Ids of this table in one example.",
)
@click.option(
    "--examples-per-s",
    "--samples-per-s",
    "samples_per_s",
    type=FiniteRange(min=0.0),
    help="Examples per second that all workers together should train.",
)
@click.option(
    "--device-reads",
    "device_reads_per_s",
    type=FiniteRange(min=1.0),
    default=UNMEASURED.reads_per_s,
    show_default=True,
    help="Reads of 4 KiB per second that the disk of a pserver can do.",
)
@JSON
def plan(*, as_json: bool, **options: Any) -> None:
    """Estimate what a table needs on each pserver: memory, disk and network.

    No job is needed. Dense parameters are not counted. Rows that don't fit into the memory are
    stored on disk, as docs/planning.md explains. The exit code is 0 whatever the advice is.

    Raises:
        UsageError: if there can't be such a table.
    """
    try:
        spec, found = _planned(options)
    except ContractError as error:
        raise click.UsageError(str(error)) from error
    show(asdict(found), _lines(spec, found), as_json=as_json)


def _planned(options: Mapping[str, Any]) -> tuple[TableSpec, Plan]:
    """Return the table and what it needs.

    Raises:
        TableSpecError: if there can't be such a table.
    """
    servers = options["servers"]
    of_rows = ("dim", "optimizer", "accessor", "storage")
    spec = spec_for(**{name: options[name] for name in of_rows})
    table = Table(
        ids=options["ids"],
        servers=servers,
        exponent=options["exponent"],
        memory_bytes=options["memory"],
    )
    of_load = ("workers", "batch", "slots", "samples_per_s", "device_reads_per_s")
    load = Load(**{name: options[name] for name in of_load})
    sizes, tier = row_sizes(spec), None
    if sizes.row <= MAX_ROW_BYTES:
        tier = tier_sizes(
            spec,
            rows=-(-table.ids // servers),
            owners=options["owner_threads"],
            budget_bytes=int(HEADROOM * (table.memory_bytes or 0)),
        )
    return spec, plan_table(table, load, sizes, tier)


def _lines(spec: TableSpec, found: Plan) -> list[str]:
    """Return what is said of a plan."""
    columns = ", ".join(
        f"{each.name} {each.width * each.dtype.itemsize}" for each in RowLayout.of(spec).columns
    )
    both = _size(found.rows_memory + found.index_memory)
    rows, index = _size(found.rows_memory), _size(found.index_memory)
    memory = f"{both}: rows {rows}, index {index} ({found.index_bytes} bytes per row)"
    if found.usable_memory is not None:
        memory += f"; tables can use {_size(found.usable_memory)}"
    net = found.network
    pulled, pushed = _size(net.pulled), _size(net.pushed)
    said = {
        "rows": f"{found.rows:,} of {found.row_bytes:,} bytes: {columns}",
        "memory": memory,
        "network": f"{net.rows:,.0f} rows per step: pulls {pulled}, pushes at most {pushed}",
        **_said_of_disk(found),
    }
    who = f"each of {found.servers:,} pservers" if found.servers > 1 else "the pserver"
    lines = [f"  {name:<8} {text}" for name, text in said.items()]
    return [who, *lines, f"{found.verdict.replace('_', ' ')}: {found.advice}"]


def _said_of_disk(found: Plan) -> dict[str, str]:
    """Return what is said where not all rows are in memory."""
    disk, misses = found.disk, found.misses
    if disk is None or misses is None:
        return {}
    pages, log = _size(disk.pages), _size(disk.log)
    whole, share = _size(disk.pages + disk.log), misses.cached_rows / found.rows
    by_clock = f"{misses.clock:.3g} rows per example with the clock policy"
    said = {
        "disk": f"{whole}: pages {pages}, log {log}",
        "cache": f"{misses.cached_rows:,} rows in memory, {share:.1%} of all",
        "misses": f"{by_clock}; {misses.hottest:.3g} with the best policy",
    }
    if misses.reads_per_s is not None and misses.requests_per_s is not None:
        said["reads"] = (
            f"{misses.reads_per_s:,.0f} per second from the disk; {misses.requests_per_s:,.0f} "
            f"requests including merges"
        )
    return said


def _size(num_bytes: float) -> str:
    """Return bytes as they are read best."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.3g} TiB" if num_bytes < 1000 else f"{num_bytes:,.0f} TiB"
