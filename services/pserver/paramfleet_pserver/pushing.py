"""What becomes of a push: kept until its step is whole, or applied on arrival."""

import asyncio
from functools import partial

from paramfleet_pserver.core.pacing import pace_of
from paramfleet_pserver.owners import Job, Owners, when_done
from paramfleet_pserver.requests import PushPart, PushRequest
from paramfleet_pserver.training import Training

__all__ = ["apply_push", "keep_push"]


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


async def apply_push(
    training: Training, owners: Owners, push: PushRequest, *, alone: bool
) -> list[bool]:
    """Apply the gradients of a step of async; returns which parts are new.

    Cancellation: what was begun is applied all the same.
    """
    fresh = [training.identities.is_fresh(part.identity) for part in push.parts]
    new = [part for part, is_fresh in zip(push.parts, fresh, strict=True) if is_fresh]
    training.check_commit(push.rank, push.step)
    jobs: list[Job] = []
    for part in new:
        training.identities.record(part.identity)
        jobs += _jobs(part, training)
    applied = owners.start(jobs, alone=alone)
    when_done(applied, partial(_count, new))
    training.commit(push.rank, push.step)
    await asyncio.shield(applied)
    if len(new) < len(fresh):
        await owners.settle()  # the original may still be on its way
    return fresh


def _jobs(part: PushPart, training: Training) -> list[Job]:
    """Return the update that a part is."""
    table, step = part.table, part.table.next_update()
    if training.terms.async_rate == "full":
        return table.update_jobs([part.content], lr=part.lr, step=step)
    workers = max(1, training.num_members)
    pace = pace_of(table.spec.optimizer, update=step, workers=workers)
    return table.paced_jobs(part.content, lr=part.lr, step=step, pace=pace)


def _count(parts: list[PushPart], applied: asyncio.Future[None]) -> None:
    if applied.exception() is None:
        for part in parts:
            part.table.version += 1
