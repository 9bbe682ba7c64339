"""What becomes of a request of a pass: what it reads, keeps, and writes back."""

from functools import partial
from typing import Any

from paramfleet_pserver.api.admission import admit
from paramfleet_pserver.api.pushing import until_applied
from paramfleet_pserver.commands.pass_codec import read_abort, read_commit
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Prepare
from paramfleet_pserver.requests.finite import check_pass
from paramfleet_pserver.requests.pass_requests import (
    PassRead,
    PrepareRequest,
    prepare_request,
    read_request,
)
from paramfleet_pserver.tables.columns import (
    PassPart,
    read_free_rows_jobs,
    read_range_job,
    read_rows_jobs,
)
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import Message

__all__ = ["abort", "commit", "prepare", "read", "state"]


async def read(
    training: Training, owners: Owners, request: Request, store: TableStore
) -> Message:
    """Read rows and ranges whole, all as they are between the same two commands.

    Raises:
        TablesDamagedError: if a change was applied in part.
        UnknownWorkerError: if the job has no such worker.
        FencedError: if a newer incarnation of the worker is known.
        FleetError: why it is no such request; see ``read_request``.
    """
    wanted = read_request(request.message, store)
    training.machine.check_whole()
    training.check_rank(wanted.rank)
    training.fence(wanted.rank, wanted.incarnation)
    jobs: list[Job] = []
    tensors: dict[str, Any] = {}
    stepped: list[list[bool]] = []
    for index, part in enumerate(wanted.parts):
        part.table.num_pulls += 1
        stepped.append([])
        jobs += _reading(part, stepped[-1])
        tensors |= {f"{index}.values": part.values, f"{index}.states": part.states}
        if part.waits is not None:
            tensors[f"{index}.waits"] = part.waits
        if part.free_rows is not None:
            tensors[f"{index}.room"] = part.free_rows
    facts = [
        {"writes": part.table.writes, "updates": part.table.num_updates, **_missed(part.table)}
        for part in wanted.parts
    ]
    passes = _mode(training).book.committed
    await owners.run(jobs, alone=request.is_alone)
    training.machine.check_whole()  # what was being written before may have failed
    for about, has_stepped in zip(facts, stepped, strict=True):
        about |= {"stepped": any(has_stepped)}
    return Message(fields={"passes": passes, "parts": facts}, tensors=tensors)


def _missed(table: Table) -> dict[str, Any]:
    """Return how many updates values have missed, if any."""
    if not isinstance(table, DenseTable) or not table.missed:
        return {}
    return {"missed": [*map(list, table.missed.counts())]}


async def prepare(
    training: Training, owners: Owners, request: Request, store: TableStore
) -> Message:
    """Keep a piece of a pass, with room for the rows that it creates.

    Raises:
        TablesDamagedError: if a change was applied in part.
        PassNumbersError: if it holds numbers that training doesn't make.
        CapacityError: if there is no room for its new rows; nothing is kept.
        TableMemoryError: if there is no memory for them, or for the piece; nothing is kept.
        FleetError: why it is no such request, see ``prepare_request``; or why it isn't kept,
            see ``PassMode.check``.
    """
    piece = prepare_request(request.message, store)
    await check_pass(piece)
    command = Prepare(piece)
    if training.machine.judge_pass(command):
        _check_memory(piece, store)
    claims = await admit(partial(_new_parts, training, command), owners)
    outcome = training.execute(command, claims=claims)
    return Message(fields={"duplicate": not outcome.is_fresh})


async def commit(training: Training, owners: Owners, request: Request) -> Message:
    """Write to the tables what is prepared of a pass, and answer when it is in all shards.

    Cancellation: what was begun is applied all the same.

    Raises:
        TablesDamagedError: if a change was applied in part, this one or one before.
        PassNotPreparedError: if other pieces are here than it names; nothing is written.
        FleetError: as ``Machine.judge_pass``.
    """
    command = read_commit(request.message)
    training.machine.judge_pass(command)
    outcome = training.execute(command)
    await until_applied(training, outcome)
    if not outcome.is_fresh:
        await owners.settle()  # the original may still be on its way
        training.machine.check_whole()
    passes = _mode(training).book.committed
    return Message(fields={"duplicate": not outcome.is_fresh, "passes": passes})


def abort(training: Training, request: Request) -> Message:
    """Drop what is prepared of a pass.

    Raises:
        PassCommittedError: if it is committed.
        FleetError: as ``Machine.judge_pass``.
    """
    training.execute(read_abort(request.message))
    return Message()


def state(training: Training) -> Message:
    """Return which passes are committed, and what is prepared of the next one."""
    book = _mode(training).book
    held = [
        {
            "rank": each.rank,
            "incarnation": each.incarnation,
            "pass": each.number,
            "pieces": each.pieces,
            "sealed": each.sealed,
        }
        for each in book.held()
    ]
    return Message(fields={"passes": book.committed, "held": held})


def _mode(training: Training) -> PassMode:
    mode = training.mode
    assert isinstance(mode, PassMode), "no other mode has these operations"
    return mode


def _new_parts(training: Training, command: Prepare) -> tuple[PassPart, ...]:
    """Return the parts that are to be kept: none of a piece that is here already."""
    return command.prepare.parts if training.machine.judge_pass(command) else ()


def _reading(part: PassRead, stepped: list[bool]) -> list[Job]:
    if isinstance(part.table, SparseTable):
        assert part.rows is not None, "a sparse part says which rows"
        part.table.use.pull(part.rows.offsets)
        free = part.free_rows
        counts = [] if free is None else read_free_rows_jobs(part.table, free)
        rows = (part.rows, part.values, part.states, part.waits)
        return [*read_rows_jobs(part.table, *rows), *counts]
    assert isinstance(part.table, DenseTable), "a table is sparse or dense"
    return [read_range_job(part.table, part.where, part.values, part.states, stepped)]


def _check_memory(piece: PrepareRequest, store: TableStore) -> None:
    """Pass if a piece may be kept until its pass ends.

    Raises:
        TableMemoryError: if there is no memory for it.
    """
    num_bytes = 0
    for part in piece.parts:
        num_bytes += part.num_bytes
        arithmetic = f"{num_bytes:,} bytes of a pass that is written back, with this table's"
        store.check_memory(part.table.spec.name, arithmetic, num_bytes)
