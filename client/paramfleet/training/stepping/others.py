"""Steps that other workers of sync take while this one waits for them in another call.

A step of sync needs every worker. One that has no batch left and waits for the others in a call
of all workers, such as a barrier, takes part in their steps without a batch: they come to the
call when they have none left either. Pserver 0 says when another worker waits in a step, and
the coordinator whether the call still lacks a worker: else the step comes after the call, and
this worker has a batch for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from paramfleet.training.job import Job
from paramfleet_shared.errors import ContractError, OutcomeUnknownError, UnavailableError

__all__ = ["OthersSteps", "StepInterruptedError"]

T = TypeVar("T")

_FIRST_ASKED_AFTER_S = 0.02
"""Most calls of all workers are over by then: no pserver is asked."""

_PARK_S = 5.0
"""Seconds for which pserver 0 keeps one question; then it is asked again."""

_RETRY_S = 0.1


class StepInterruptedError(ContractError):
    """A worker waits for the others in the middle of a step in which these wait for it."""

    code = "contract.step_interrupted"
    rank: int
    at: str
    step: int
    """Its number, from 1."""
    sentence = (
        "worker {rank} waits for the other workers in {at}, and they wait for it in step "
        "{step}: its model was called, and optimizer.step() wasn't; make this call between two "
        "steps, as often in every worker, and evaluate under torch.no_grad()"
    )


class OthersSteps:
    """Waits for other workers, and tells when they need this one in a step.

    Args:
        job: In sync.
        step: Returns the step that this worker takes next.
    """

    def __init__(self, job: Job, *, step: Callable[[], int]) -> None:
        self._job = job
        self._step = step

    def wait(
        self,
        work: Coroutine[Any, Any, T],
        take_step: Callable[[], None],
        *,
        is_incomplete: Callable[[], Awaitable[bool]],
    ) -> T:
        """Return the result of what all workers take part in.

        Args:
            work: Waits for them.
            is_incomplete: Returns whether it still lacks a worker, and False if that is
                unknown.
            take_step: Takes part in a step without a batch; called in this thread whenever
                another worker waits in one.

        Raises:
            FleetError: what ``work`` or ``take_step`` raises.
        """
        communicator, times = self._job.communicator, self._job.times
        coming, pause_s = communicator.submit(work), _FIRST_ASKED_AFTER_S
        try:
            while True:
                with times.during("barrier"):
                    awaited = communicator.wait(
                        self._until_awaited(coming, pause_s, is_incomplete)
                    )
                if not awaited:
                    return coming.result()
                take_step()
                pause_s = 0.0
        except BaseException:
            coming.cancel()
            raise

    async def _until_awaited(
        self,
        coming: Future[Any],
        pause_s: float,
        is_incomplete: Callable[[], Awaitable[bool]],
    ) -> bool:
        """Return True when another worker waits in a step; False when ``coming`` is done."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        coming.add_done_callback(lambda _: loop.call_soon_threadsafe(over.set))
        ended = loop.create_task(over.wait())
        asking = loop.create_task(self._ask(pause_s, is_incomplete))
        try:
            await asyncio.wait({ended, asking}, return_when=asyncio.FIRST_COMPLETED)
            return not coming.done() and asking.done() and asking.result()
        finally:
            ended.cancel()
            asking.cancel()

    async def _ask(self, pause_s: float, is_incomplete: Callable[[], Awaitable[bool]]) -> bool:
        """Ask until another worker waits in a step before the call; return True then."""
        job = self._job
        await job.communicator.clock.sleep(pause_s)
        fields = {**job.author.fields(), "step": self._step()}
        while True:
            try:
                answer = await job.pservers.call_one(0, "await_step", fields, timeout_s=_PARK_S)
            except (UnavailableError, OutcomeUnknownError):
                # The call that this worker is in has a deadline, and names who is missing.
                await job.communicator.clock.sleep(_RETRY_S)
                continue
            if not answer.fields["awaited"]:
                continue
            if await is_incomplete():
                return True
            await job.communicator.clock.sleep(_RETRY_S)
