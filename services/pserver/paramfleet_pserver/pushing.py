"""What becomes of a push, kept until its step is whole or applied on arrival, and of a pull."""

import asyncio
from functools import partial
from typing import Any

from paramfleet_pserver.core.pacing import pace_of
from paramfleet_pserver.holding import Holding
from paramfleet_pserver.owners import Job, Owners, when_done
from paramfleet_pserver.parts import is_counted
from paramfleet_pserver.reading import reading
from paramfleet_pserver.requests import PullRequest, PushPart, PushRequest
from paramfleet_pserver.training import Training
from paramfleet_shared.rpc.server import Request
from paramfleet_shared.wire.message import Message

__all__ = ["answer_pull", "apply_push", "keep_push", "take_step"]


def keep_push(training: Training, push: PushRequest) -> list[bool]:
    """Keep the gradients of a step of sync until it is whole; returns which parts are new."""
    steps = training.steps
    assert steps is not None, "only in sync"
    fresh = [training.identities.is_fresh(part.identity) for part in push.parts]
    if not any(fresh) and (push.parts or steps.holds(push.rank, push.step)):
        return fresh
    steps.check(push.rank, push.step, push.weight)
    for part in push.parts:
        training.identities.record(part.identity)
    training.commit(push.rank, push.step)
    steps.keep(push.rank, push.step, push.weight, push.parts)
    return fresh


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
    fresh = keep_push(training, push)
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
    """
    versions = [part.table.version for part in pull.parts]
    jobs, tensors = reading(pull)
    await owners.run(jobs, alone=alone)
    slowest = training.slowest_but(pull.rank)
    return Message(fields={"versions": versions, "slowest": slowest, **facts}, tensors=tensors)


async def apply_push(
    training: Training, owners: Owners, push: PushRequest, holding: Holding, *, alone: bool
) -> list[bool]:
    """Apply the gradients of a step of async; returns which parts are new.

    Args:
        training: Whose tables they are.
        owners: Who works on them.
        push: What is pushed; no hold keeps it back.
        holding: What is told whether more of the step will come.
        alone: Whether nobody else waits for this server.

    Cancellation: what was begun is applied all the same.
    """
    fresh = [training.identities.is_fresh(part.identity) for part in push.parts]
    new = [part for part, is_fresh in zip(push.parts, fresh, strict=True) if is_fresh]
    training.check_commit(push.rank, push.step)
    jobs: list[Job] = []
    for part in new:
        training.identities.record(part.identity)
        jobs += _jobs(part, training)
    if new or not push.parts:
        holding.note(push.rank, push.incarnation, continues=push.continues)
    applied = owners.start(jobs, alone=alone)
    when_done(applied, partial(_count, new))
    if not push.continues:
        training.commit(push.rank, push.step)
    await asyncio.shield(applied)
    if len(new) < len(fresh):
        await owners.settle()  # the original may still be on its way
    return fresh


def _jobs(part: PushPart, training: Training) -> list[Job]:
    """Return the update that a part is."""
    table, step = part.table, part.table.number_of(part.content)
    if training.terms.async_rate == "full":
        return table.update_jobs([part.content], lr=part.lr, step=step)
    workers = max(1, training.num_members)
    pace = pace_of(table.spec.optimizer, update=step, workers=workers)
    return table.paced_jobs(part.content, lr=part.lr, step=step, pace=pace)


def _count(parts: list[PushPart], applied: asyncio.Future[None]) -> None:
    if applied.exception() is None:
        for part in parts:
            part.table.version += is_counted(part.content)
