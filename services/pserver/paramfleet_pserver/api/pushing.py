"""What becomes of a request that changes tables, and of a pull.

A change is judged, and has room for its new rows, before it is executed as a command.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from paramfleet_pserver.api.admission import Hold, admit, claim, creating
from paramfleet_pserver.api.reading import reading
from paramfleet_pserver.commands.machine import Outcome
from paramfleet_pserver.commands.records import (
    Contribute,
    Create,
    Discount,
    Exchange,
    Remove,
    Update,
    WriteRows,
)
from paramfleet_pserver.commands.taking import PartReply
from paramfleet_pserver.requests.checked import ExchangeRequest, PullRequest, PushRequest
from paramfleet_pserver.requests.row_requests import (
    DiscountRequest,
    RemoveRequest,
    WriteRequest,
)
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table import DenseTable, Table
from paramfleet_pserver.waiting.holding import Holding
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = [
    "answer_pull",
    "apply_exchange",
    "apply_push",
    "keep_push",
    "remove_rows",
    "take_step",
    "trained_beside",
    "until_applied",
    "write_rows",
]


async def keep_push(
    training: Training, owners: Owners, push: PushRequest, request: Request
) -> bool:
    """Keep the gradients of a step of sync until it is whole; returns whether they are new.

    A server that went on from its disk may be steps behind: the others' pushes of those are
    waited for.

    Raises:
        StepIncompleteError: if the request's deadline comes first.
        CapacityError: if there is no room for their new rows; nothing is kept.
        TableMemoryError: if there is no memory for them; nothing is kept.
    """
    command = Contribute(push)
    if training.journal is not None:
        await training.waits.wait(push.step, deadline=request.deadline)
    claims = await admit(partial(training.machine.judge, command), owners)
    return training.execute(command, claims=claims).is_fresh


async def take_step(
    training: Training, owners: Owners, push: PushRequest, pull: PullRequest, request: Request
) -> Message:
    """Keep the gradients of a step of sync, and read when it is applied.

    Cancellation: what is kept is applied all the same.

    Raises:
        StepIncompleteError: if the request's deadline comes first.
    """
    is_fresh = await keep_push(training, owners, push, request)
    waited_s = await training.waits.wait(push.step + 1, deadline=request.deadline)
    facts = {"duplicate": not is_fresh, "waited_s": waited_s}
    return await answer_pull(training, owners, pull, alone=request.is_alone, **facts)


async def answer_pull(
    training: Training, owners: Owners, pull: PullRequest, *, alone: bool, **facts: Any
) -> Message:
    """Read what a pull asks for, as the tables are now.

    Args:
        training: Whose tables they are.
        owners: Who reads them.
        pull: What is asked for.
        alone: Whether nobody else waits for this server.
        facts: More fields of the answer.

    Raises:
        TablesDamagedError: if a change was applied in part.
        FencedError: if ids are to be kept, and a newer incarnation of the worker is known.
        VersionGoneError: if values are asked for that are kept no more.
        CapacityError: if there is no room for the rows that it would create; none is.
        TableMemoryError: if there is no memory for them; none is created.
    """
    training.machine.check_whole()
    if pull.incarnation is not None:
        training.fence(pull.rank, pull.incarnation)
    new = creating(pull)
    claims = await claim([table.wanted_by(rows) for table, rows in new], owners)
    versions = [part.table.version for part in pull.parts]
    keeps = training.is_latest(pull.rank, pull.incarnation)
    jobs, tensors = reading(pull, keeps=keeps, before=training.mode.before(pull.version))
    if not training.machine.gate.has(pull.rank):  # it pushes no more
        training.machine.store.forget(pull.rank)
    if new:
        command = Create(tuple((table, RowIds(rows.ids, rows.offsets)) for table, rows in new))
        end = training.execute(command, claims=claims, reads=jobs, alone=alone).applied
    else:
        end = owners.start(jobs, alone=alone)
    await asyncio.shield(end)
    slowest = training.slowest_but(pull.rank)
    if any(part.rows is None for part in pull.parts):
        facts |= trained_beside(training, [part.table for part in pull.parts])
    return Message(fields={"versions": versions, "slowest": slowest, **facts}, tensors=tensors)


def trained_beside(training: Training, tables: Sequence[Table]) -> dict[str, Any]:
    """Return which dense tables are trained beside those that a worker reads, if any are.

    It may not know: its own parameters of them are frozen.
    """
    unread = [
        table.spec.name
        for table in training.machine.store
        if isinstance(table, DenseTable) and table.num_pushes and table not in tables
    ]
    return {"unread": unread} if unread else {}


async def apply_push(
    training: Training, owners: Owners, push: PushRequest, holding: Holding, request: Request
) -> bool:
    """Apply the gradients of a step of async; returns whether they are new.

    Args:
        training: Whose tables they are.
        owners: Who works on them.
        push: What is pushed.
        holding: What may keep it back, and is informed whether more of the step will come.
        request: What it came with.

    Cancellation: what was begun is applied all the same.

    Raises:
        TablesDamagedError: if a change was applied in part, this one or one before.
        CapacityError: if there is no room for its new rows; nothing is changed.
        TableMemoryError: if there is no memory for them; nothing is changed.
    """
    command = Update(push)
    hold = Hold(holding, push.identity, request.deadline)
    claims = await admit(partial(training.machine.judge, command), owners, hold)
    outcome = training.execute(command, claims=claims, alone=request.is_alone)
    _note(holding, push, outcome)
    await until_applied(training, outcome)
    if not outcome.is_fresh:
        await owners.settle()  # the original may still be on its way
    return outcome.is_fresh


async def apply_exchange(
    training: Training,
    owners: Owners,
    exchange: ExchangeRequest,
    holding: Holding,
    request: Request,
) -> tuple[list[PartReply], list[float]]:
    """Add differences, or let optimizers take them.

    Args:
        training: Whose tables they are.
        owners: Who works on them.
        exchange: What is exchanged.
        holding: What may keep it back, and is informed whether more of the exchange will come.
        request: What it came with.

    Returns:
        What the worker is to receive of each table, and the losses that the others reported.

    Cancellation: what was begun is applied all the same.

    Raises:
        TablesDamagedError: if a change was applied in part, this one or one before.
        CapacityError: if there is no room for its new rows; nothing is changed.
        TableMemoryError: if there is no memory for them; nothing is changed.
    """
    command = Exchange(exchange)
    hold = Hold(holding, exchange.identity, request.deadline)
    claims = await admit(partial(training.machine.judge, command), owners, hold)
    outcome = training.execute(command, claims=claims)
    _note(holding, exchange, outcome)
    losses = training.note_loss(exchange.rank, exchange.loss)
    await until_applied(training, outcome)
    if not outcome.is_fresh:
        await owners.settle()  # the original may still be on its way
    assert outcome.taken is not None, "of an exchange"
    return await outcome.taken.read(), losses


async def remove_rows(
    training: Training,
    owners: Owners,
    remove: RemoveRequest,
    holding: Holding,
    request: Request,
) -> int:
    """Remove rows; returns how many there were, of a retry as the first time.

    Args:
        training: Whose tables they are of.
        owners: Who works on them.
        remove: What is removed.
        holding: What may keep it back.
        request: What it came with.

    Cancellation: what was begun is applied all the same.

    Raises:
        TablesDamagedError: if a change was applied in part, this one or one before.
        StepBegunError: in sync, if a worker has pushed the step in progress.
    """
    if training.journal is not None:  # a server that went on from its disk may be steps behind
        await training.waits.wait(remove.step, deadline=request.deadline)
    hold = Hold(holding, remove.identity, request.deadline)
    outcome = await _change_rows(training, owners, Remove(remove), hold)
    assert outcome.removal is not None, "of a removal"
    return outcome.removal.num_rows


async def discount_rows(
    training: Training,
    owners: Owners,
    discount: DiscountRequest,
    holding: Holding,
    request: Request,
) -> None:
    """Subtract what an export has of the ``delta_score`` of rows.

    Args:
        training: Whose tables they are of.
        owners: Who works on them.
        discount: What is subtracted.
        holding: What may keep it back.
        request: What it came with.

    Cancellation: what was begun is applied all the same.

    Raises:
        TablesDamagedError: if a change was applied in part, this one or one before.
    """
    hold = Hold(holding, discount.identity, request.deadline)
    await _change_rows(training, owners, Discount(discount), hold)


async def write_rows(
    training: Training,
    owners: Owners,
    write: WriteRequest,
    holding: Holding,
    request: Request,
) -> bool:
    """Give rows values; return False if the table is not new, and the request needs that.

    Args:
        training: Whose tables they are of.
        owners: Who works on them.
        write: What is written.
        holding: What may keep it back.
        request: What it came with.

    Cancellation: what was begun is applied all the same.

    Raises:
        TablesDamagedError: if a change was applied in part, this one or one before.
        StepBegunError: in sync, if a worker has pushed the step in progress.
        CapacityError: if there is no room for the new rows; nothing is changed.
        TableMemoryError: if there is no memory for them; nothing is changed.
    """
    if training.journal is not None:  # a server that went on from its disk may be steps behind
        await training.waits.wait(write.step, deadline=request.deadline)
    hold = Hold(holding, write.identity, request.deadline)
    outcome = await _change_rows(training, owners, WriteRows(write), hold)
    return outcome.is_changed or not outcome.is_fresh


async def _change_rows(
    training: Training, owners: Owners, command: Remove | Discount | WriteRows, hold: Hold
) -> Outcome:
    """Execute a change of rows past their optimizer, and return when it is applied.

    Cancellation: what was begun is applied all the same.

    Raises:
        TablesDamagedError: if a change was applied in part, this one or one before.
        StepBegunError: in sync, if rows are to be removed or written and a worker has pushed
            the step in progress.
        CapacityError: if there is no room for new rows; nothing is changed.
        TableMemoryError: if there is no memory for them; nothing is changed.
    """
    claims = await admit(partial(training.machine.judge, command), owners, hold)
    outcome = training.execute(command, claims=claims)
    await until_applied(training, outcome)
    return outcome


async def until_applied(training: Training, outcome: Outcome) -> None:
    """Wait until a change is in all shards.

    Raises:
        TablesDamagedError: if it is in some alone.
    """
    try:
        await asyncio.shield(outcome.applied)
    except Exception:
        training.machine.check_whole()
        raise


def _note(holding: Holding, change: PushRequest | ExchangeRequest, outcome: Outcome) -> None:
    """Let a hold know whether more of a change will come."""
    if outcome.is_fresh:
        holding.note(change.identity, continues=change.continues)
