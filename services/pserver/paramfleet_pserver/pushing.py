"""What becomes of a push, kept until its step is whole or applied on arrival, and of a pull.

A change is judged, and has room for its new rows, before its first effect.
"""

import asyncio
from functools import partial
from typing import Any

from paramfleet_pserver.admission import Hold, admit, claim, wanted_of_pull
from paramfleet_pserver.capacity import Claims
from paramfleet_pserver.core.pacing import pace_of
from paramfleet_pserver.geo import PartReply
from paramfleet_pserver.holding import Holding
from paramfleet_pserver.owners import Job, Owners, when_done
from paramfleet_pserver.parts import is_counted
from paramfleet_pserver.reading import reading
from paramfleet_pserver.requests import (
    ExchangePart,
    ExchangeRequest,
    PullRequest,
    PushPart,
    PushRequest,
)
from paramfleet_pserver.stepping import SyncSteps
from paramfleet_pserver.training import Training
from paramfleet_shared.rpc.server import Request
from paramfleet_shared.wire.message import Message

__all__ = ["answer_pull", "apply_exchange", "apply_push", "keep_push", "take_step"]


async def keep_push(training: Training, owners: Owners, push: PushRequest) -> list[bool]:
    """Keep the gradients of a step of sync until it is whole; returns which parts are new.

    Raises:
        CapacityError: if there is no room for their new rows; nothing is kept.
        TableMemoryError: if there is no memory for them; nothing is kept.
    """
    steps = training.steps
    assert steps is not None, "only in sync"

    def judge() -> tuple[PushPart, ...]:
        if _is_known(training, push, steps):
            return ()
        steps.check(push.rank, push.step, push.weight)
        return push.parts

    claims = await admit(judge, owners)
    fresh = _fresh(training, push)
    if _is_known(training, push, steps):
        claims.release()
        return fresh
    for part in push.parts:
        training.identities.record(part.identity)
    training.commit(push.rank, push.step)
    steps.keep(push.rank, push.step, push.weight, push.parts, claims)
    return fresh


def _is_known(training: Training, push: PushRequest, steps: SyncSteps) -> bool:
    """Return whether a push of sync was kept before."""
    if push.parts:
        return not any(_fresh(training, push))
    return steps.holds(push.rank, push.step)


def _fresh(training: Training, change: PushRequest | ExchangeRequest) -> list[bool]:
    """Return which parts of a change weren't taken before."""
    return [training.identities.is_fresh(part.identity) for part in change.parts]


async def take_step(
    training: Training, owners: Owners, push: PushRequest, pull: PullRequest, request: Request
) -> Message:
    """Keep the gradients of a step of sync, and read when it is applied.

    Cancellation: what is kept is applied all the same.

    Raises:
        StepIncompleteError: if the request's deadline comes first.
    """
    steps = training.steps
    assert steps is not None, "only in sync"
    fresh = await keep_push(training, owners, push)
    waited_s = await steps.wait(push.step + 1, deadline=request.deadline)
    facts = {"duplicate": [not each for each in fresh], "waited_s": waited_s}
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
        CapacityError: if there is no room for the rows that it would create; none is.
        TableMemoryError: if there is no memory for them; none is created.
    """
    wanted = list(wanted_of_pull(pull))
    claims = await claim(wanted, owners)
    versions = [part.table.version for part in pull.parts]
    jobs, tensors = reading(pull)
    end = owners.start(jobs, alone=alone)
    when_done(end, lambda _: claims.release())
    await asyncio.shield(end)
    slowest = training.slowest_but(pull.rank)
    return Message(fields={"versions": versions, "slowest": slowest, **facts}, tensors=tensors)


async def apply_push(
    training: Training, owners: Owners, push: PushRequest, holding: Holding, request: Request
) -> list[bool]:
    """Apply the gradients of a step of async; returns which parts are new.

    Args:
        training: Whose tables they are.
        owners: Who works on them.
        push: What is pushed.
        holding: What may keep it back, and is told whether more of the step will come.
        request: What it came with.

    Cancellation: what was begun is applied all the same.

    Raises:
        CapacityError: if there is no room for its new rows; nothing is changed.
        TableMemoryError: if there is no memory for them; nothing is changed.
    """
    judge = partial(_new_parts, training, push)
    claims = await admit(judge, owners, Hold(holding, push.parts, request.deadline))
    fresh = _fresh(training, push)
    new = [part for part, is_fresh in zip(push.parts, fresh, strict=True) if is_fresh]
    jobs: list[Job] = []
    for part in new:
        training.identities.record(part.identity)
        jobs += _jobs(part, training)
    if new or not push.parts:
        holding.note(push.rank, push.incarnation, continues=push.continues)
    applied = owners.start(jobs, alone=request.is_alone)
    when_done(applied, partial(_count, new, claims))
    if not push.continues:
        training.commit(push.rank, push.step)
    await asyncio.shield(applied)
    if len(new) < len(fresh):
        await owners.settle()  # the original may still be on its way
    return fresh


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
        holding: What may keep it back, and is told whether more of the exchange will come.
        request: What it came with.

    Returns:
        What the worker is to hear of each table, and what the others said of their losses.

    Cancellation: what was begun is applied all the same.

    Raises:
        CapacityError: if there is no room for its new rows; nothing is changed.
        TableMemoryError: if there is no memory for them; nothing is changed.
    """
    geo = training.geo
    assert geo is not None, "only in GEO and LocalSGD"
    judge = partial(_new_parts, training, exchange)
    claims = await admit(judge, owners, Hold(holding, exchange.parts, request.deadline))
    new = [part for part in exchange.parts if training.identities.is_fresh(part.identity)]
    for part in new:
        training.identities.record(part.identity)
    if new or not exchange.parts:
        holding.note(exchange.rank, exchange.incarnation, continues=exchange.continues)
    is_mean = training.terms.mode == "localsgd"
    added = geo.begin(exchange, new, share=1.0 / training.num_members if is_mean else 1.0)
    when_done(added, lambda _: claims.release())
    losses = training.hear_loss(exchange.rank, exchange.loss)
    training.commit(exchange.rank, exchange.step)
    await asyncio.shield(added)
    if len(new) < len(exchange.parts):
        await owners.settle()  # the original may still be on its way
    return await geo.reply(exchange), losses


def _new_parts(
    training: Training, change: PushRequest | ExchangeRequest
) -> list[PushPart | ExchangePart]:
    """Return the parts of a change that weren't taken before, if its step may be committed."""
    new = [part for part in change.parts if training.identities.is_fresh(part.identity)]
    training.check_commit(change.rank, change.step)
    return new


def _jobs(part: PushPart, training: Training) -> list[Job]:
    """Return the update that a part is."""
    table, step = part.table, part.table.number_of(part.content)
    if training.terms.async_rate == "full":
        return table.update_jobs([part.content], lr=part.lr, step=step)
    workers = max(1, training.num_members)
    pace = pace_of(table.spec.optimizer, update=step, workers=workers)
    return table.paced_jobs(part.content, lr=part.lr, step=step, pace=pace)


def _count(parts: list[PushPart], claims: Claims, applied: asyncio.Future[None]) -> None:
    claims.release()
    if applied.exception() is None:
        for part in parts:
            part.table.version += is_counted(part.content)
