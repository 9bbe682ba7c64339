"""A process goes on in the place of a worker that died.

Its script runs from the beginning. What the former process had trained is at the pservers;
where it was in its data, its schedules and random numbers came with its changes, and the first
pserver has them. So the next step is the one that the former process would have taken.
"""

import logging
from typing import Any, NamedTuple

import msgpack
import torch

from paramfleet.config.strategy import TrainingMode
from paramfleet.model_state.agreement import Agreement
from paramfleet.model_state.plain import pack, unpack
from paramfleet.model_state.random_states import (
    check_random,
    packed_random,
    restore_random,
    unpacked_random,
)
from paramfleet.session.backends.base import Backend
from paramfleet.session.backends.resuming import plain_of, progress_of, take_progress
from paramfleet.session.registered import SavedProgress
from paramfleet.training.job import Job
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.errors import ContractError, IntegrityError
from paramfleet_shared.net.wire.message import Message

__all__ = [
    "NotReturnedError", "StateDamagedError", "StateGoneError", "begin_again", "check_returns",
    "judged_state", "keep_state",
]  # fmt: skip

log = logging.getLogger(__name__)

_MAX_BUFFER_BYTES = 4 << 20
"""Of the model's buffers in a state: larger ones begin as the script makes them."""

_TIMEOUT_S = 60.0


class NotReturnedError(ContractError):
    """A worker was started again in a training that a worker can't come back to."""

    code = "contract.not_returned"
    what: str
    sentence = "a worker that died can't be started again with {what}: resume from a checkpoint"


class StateGoneError(IntegrityError):
    """A worker was started again, and nobody knows where it was."""

    code = "integrity.worker_state_gone"
    rank: int
    step: int
    sentence = (
        "worker {rank} was started again, and the pservers don't have its position before step "
        "{step}: resume the job from a checkpoint"
    )


class StateDamagedError(IntegrityError):
    """A worker was started again, and what is kept of where it was can't be read."""

    code = "integrity.worker_state_damaged"
    rank: int
    reason: str
    sentence = (
        "worker {rank} was started again, and its position can't be read from the pservers "
        "({reason}): resume the job from a checkpoint"
    )


def check_returns(job_has_returned: bool, mode: TrainingMode, *, workers: int) -> None:  # noqa: FBT001 (a fact)
    """Pass if this process may go on in the place of another, or is the first of its worker.

    Raises:
        NotReturnedError: if the mode keeps what can't come back.
    """
    if not job_has_returned:
        return
    if mode.sync_batch_norm:
        raise NotReturnedError(what="sync_batch_norm, whose sums are kept for one step")
    if mode.name == "gpubox" and workers > 1:
        raise NotReturnedError(what="gpubox and several workers")


def keep_state(backend: Backend, job: Job, optimizer: DistributedOptimizer) -> None:
    """Have this worker's changes say where it is, if another process may take its place."""
    if not job.communicator.session.returning:
        return
    buffers = Agreement(job.agreement.model, max_bytes=_MAX_BUFFER_BYTES)

    def take() -> bytes:
        registered = backend.own.registered
        progress = registered.kept(
            rank=job.author.rank, steps=optimizer.num_begun, workers=job.worker_num
        )
        progress.days = optimizer.counted_days()
        packed: bytes = msgpack.packb(
            {
                "progress": pack(plain_of(progress)),
                "random": packed_random(_device()),
                "rates": [float(group["lr"]) for group in optimizer.param_groups],
                "buffers": buffers.payload(say="all") if buffers.has_state else b"",
                "agreed": job.agreement.agreed,
            }
        )
        return packed

    job.keeper.begin(take)


def begin_again(
    backend: Backend,
    job: Job,
    optimizer: DistributedOptimizer,
    *,
    step: int | None,
    exactly: bool = True,
) -> None:
    """Go on where the former process of this worker was.

    Args:
        backend: This process's.
        job: The same.
        optimizer: What the script steps.
        step: The step to begin with, in sync and LocalSGD; None for behind the last change that
            is there.
        exactly: Whether it has to be that step; else it is behind the last change where nobody
            knows of it, as of a worker that had left.

    Raises:
        StateGoneError: if nobody knows where it was.
        StateDamagedError: if what is kept of that can't be read; nothing is changed.
        RegisteredStateError: if a state isn't one of the object that is registered by its name.
        OtherDataError: if a position is one in other data.
    """
    if step == 0:
        return
    answer = _asked(job, step)
    if "progress" not in answer.tensors and not exactly:
        answer, step = _asked(job, None), None
    if "progress" not in answer.tensors:
        if step is not None:
            raise StateGoneError(rank=job.author.rank, step=step)
        return
    packed, device = answer.tensors["progress"].tobytes(), _device()
    try:
        state = judged_state(packed, groups=len(optimizer.param_groups), device=device)
    except ValueError as error:
        raise StateDamagedError(rank=job.author.rank, reason=str(error)) from error
    progress = state.progress
    for group, rate in zip(optimizer.param_groups, state.rates, strict=True):
        group["lr"] = rate  # before the schedules, of which one may step here
    lacking = take_progress(backend, optimizer, progress, "pserver 0")
    _take_buffers(job, state)
    restore_random(state.random, device)
    facts = {"step": int(answer.fields["step"]), "steps": progress.steps, "lacking": lacking}
    if not progress.positions:
        facts["remedy"] = (
            "no position in data is registered: the script must skip the first "
            "optimizer.num_steps steps itself, or register its dataset before init_worker"
        )
    is_whole = bool(progress.positions) and not lacking
    log.log(logging.INFO if is_whole else logging.WARNING, "worker.returned", extra=facts)


def _asked(job: Job, step: int | None) -> Message:
    fields = {**job.author.fields(), "step": step}
    asked = job.pservers.call_one(0, "progress", fields, timeout_s=_TIMEOUT_S)
    return job.communicator.wait(asked)


class _State(NamedTuple):
    """Where a worker was, as its former process sent it."""

    progress: SavedProgress
    random: dict[str, Any]
    rates: list[float]
    buffers: bytes
    agreed: Any


def judged_state(packed: bytes, *, groups: int, device: torch.device) -> _State:
    """Return what ``keep_state`` had packed, judged before anything is changed.

    Raises:
        ValueError: if it isn't that, or has rates of another number of groups.
    """
    try:
        said = msgpack.unpackb(packed)
        progress = progress_of(unpack(said["progress"]))
        random = unpacked_random(said["random"])
        rates, buffers, agreed = said["rates"], said["buffers"], said["agreed"]
        are_rates = all(type(rate) is float for rate in rates) and len(rates) == groups
    except (
        AttributeError,
        LookupError,
        TypeError,
        msgpack.UnpackException,
    ) as error:
        problem = f"it is malformed: {error!r}"
        raise ValueError(problem) from error
    if progress is None or type(buffers) is not bytes or type(agreed) is not dict:
        raise ValueError("it lacks the training's progress or the buffers")
    if not are_rates:
        problem = f"it has no learning rate for each of {groups} groups of parameters"
        raise ValueError(problem)
    check_random(random, device)
    return _State(progress, random, rates, buffers, agreed)


def _take_buffers(job: Job, state: _State) -> None:
    if not job.agreement.has_state or not state.buffers:
        return
    for problem in job.agreement.take([state.buffers], spares=True):
        log.warning("worker.buffers_differ", extra={"reason": str(problem)})
    job.agreement.agreed = state.agreed


def _device() -> torch.device:
    """Return where random numbers are drawn beside the processor."""
    return torch.device("cuda" if _has_cuda() else "cpu")


def _has_cuda() -> bool:
    is_there: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's
    return is_there
