"""What a mode knows of the job it runs in, and the start that all modes share."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet.config.settings import WorkerSettings
from paramfleet.config.strategy import TrainingMode
from paramfleet.model_state.agreement import Agreement
from paramfleet.model_state.latecomers import take_current_buffers
from paramfleet.model_state.one_checkpoint import LoadedFrom
from paramfleet.model_state.saved_state import buffers_to_load
from paramfleet.tables.dense import DenseBlock
from paramfleet.telemetry.call_sites import waits_in
from paramfleet.telemetry.examples_count import ExampleCounter
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.transport.answering import Answering
from paramfleet.transport.communicator import Communicator
from paramfleet.transport.keeping import Keeper
from paramfleet.transport.leaving import Departure
from paramfleet.transport.pservers import PIECES_AT_ONCE, PServers, ends_of
from paramfleet.transport.requests import Author, Read, ReadPlan, decoded_part, dense_slice
from paramfleet_shared.checkpoint.one_manifest import of_one_manifest
from paramfleet_shared.discovery.errors import GatherLostError
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors import IntegrityError
from paramfleet_shared.errors.served import StepIncompleteError, TotalIncompleteError
from paramfleet_shared.net.rpc.breaking.chaos_faults import chaos_faults
from paramfleet_shared.net.rpc.breaking.planned_faults import faults_of
from paramfleet_shared.net.rpc.tasks import hop, is_here
from paramfleet_shared.net.secret import secret_of
from paramfleet_shared.net.tls import tls_of
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.settings.failpoints import arm
from paramfleet_shared.tables.encoding import WireDtype
from paramfleet_shared.tables.spec import TableSpec

__all__ = [
    "FINISH_TIMEOUT_S",
    "IncarnationUsedError",
    "Job",
    "Staleness",
    "agree_on_dense",
    "declare",
    "dense_plan",
    "fetch_dense",
    "fetch_exchanged",
    "open_job",
    "pull_dense",
    "require_unused",
    "slowest_of",
    "with_places",
]


Incomplete = TypeVar("Incomplete", StepIncompleteError, TotalIncompleteError)

Ask = Callable[[ReadPlan, int], Awaitable[list[Message]]]
"""Pulls a plan when so many steps are applied."""

FINISH_TIMEOUT_S = 86_400.0
"""How long a worker that is done waits for the slowest; a dead one ends the wait at once."""

COMPILE_ALLOWANCE_S = 600.0
"""How much longer a declaration may take where pservers may have kernels to compile for it."""

_DENSE = "fleet.dense"
"""Where workers wait for worker 0's dense values and buffers."""

log = logging.getLogger(__name__)


class IncarnationUsedError(IntegrityError):
    """A process of a worker was given the incarnation of a former one, which has written.

    Its changes would be taken for that one's, and dropped.
    """

    code = "integrity.incarnation_used"
    rank: int
    incarnation: int
    server: int
    sentence = (
        "worker {rank} got incarnation {incarnation}, which an earlier process of this worker "
        "used on pserver {server}: Redis and the coordinator have lost its record; start this "
        "worker again, and it gets the next incarnation"
    )


class Staleness:
    """How many batches this worker ran ahead of the slowest push it had seen."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._last = 0

    def note(self, *, step: int, slowest: int | None) -> None:
        """Record the lead of ``step`` over the slowest other worker, if there is one."""
        self._last = 0 if slowest is None else max(0, step - slowest)
        self._counts[self._last] += 1

    @property
    def last(self) -> int:
        """Return the newest sample, in batches; 0 before the first."""
        return self._last

    def percentile(self, percent: float) -> float:
        """Return the lead, in batches, that so many of a hundred samples don't exceed."""
        leads = sorted(self._counts)
        seen = np.cumsum([self._counts[lead] for lead in leads])
        if not len(seen):
            return 0.0
        return float(leads[int(np.searchsorted(seen, seen[-1] * percent / 100))])

    def counts(self) -> dict[str, int]:
        """Return how many samples are at most 0, 1, 2, 4, 8... and above the one before.

        Any thread may ask.
        """
        bounded: Counter[int] = Counter()
        for lead, count in self._counts.copy().items():
            bounded[1 << (lead - 1).bit_length() if lead else 0] += count
        return {str(bound): bounded[bound] for bound in sorted(bounded)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A worker's connections and its place in the job."""

    communicator: Communicator
    pservers: PServers
    author: Author
    worker_num: int
    host: str
    """Where other workers reach this one."""
    times: StepTimes
    departure: Departure = field(default_factory=Departure)
    staleness: Staleness = field(default_factory=Staleness)
    agreement: Agreement = field(default_factory=lambda: Agreement(None))
    answering: Answering
    """What this worker says where pservers ask it."""
    examples: ExampleCounter = field(default_factory=ExampleCounter)
    keeper: Keeper = field(default_factory=Keeper)
    """What this worker's changes say of where it is."""

    @property
    def has_returned(self) -> bool:
        """Return whether this process goes on in the place of a worker that died."""
        session = self.communicator.session
        return session.returning and session.late

    @property
    def placement(self) -> Placement:
        """Return who hosts which shard."""
        return self.pservers.placement

    def settle(self) -> None:
        """Return when nothing that this worker has sent can be lost with a pserver.

        So what others find behind a barrier stays.
        """
        if self.pservers.outbox:
            self.communicator.wait(self.pservers.settle())

    def barrier(self, name: str, *, timeout_s: float | None = None) -> None:
        """Wait until every worker is at the barrier of this name."""
        session = self.communicator.session
        with self.times.during("barrier"):
            self.settle()
            self.communicator.wait(
                session.barrier(name, timeout_s=timeout_s, at=waits_in(name))
            )

    async def say_goodbye(self) -> None:
        """Leave where nothing of this worker is on its way."""
        await self.pservers.call_all("leave", {**self.author.fields(), "step": 0})
        await self.answering.depart()

    def wait_for_the_end(self, name: str) -> None:
        """Wait for workers that may train on for long; this one is done.

        Those who synchronize here hold the same buffers from then on.
        """
        with self.departure.at_rest():
            payloads = self._gather(name, self.agreement.payload(), FINISH_TIMEOUT_S)
        self.communicator.session.finished_with = len(payloads)
        for problem in self.agreement.take(payloads, spares=True):  # the training is done
            log.warning("worker.buffers_differ", extra={"reason": str(problem)})

    def begin_alike(self, name: str) -> None:
        """Wait for all workers to begin, and take worker 0's buffers.

        Raises:
            BufferMismatchError: if a buffer's shape or dtype isn't the same everywhere.
            BufferTooLargeError: if one that isn't the same is too large to be sent.
        """
        payload = self.agreement.payload(say="none" if self.author.rank else "all")
        self.agreement.take(self._gather(name, payload))

    def _gather(self, name: str, payload: bytes, timeout_s: float | None = None) -> list[bytes]:
        """Return every worker's payload; this one's alone if Redis lost others'."""
        session = self.communicator.session
        try:
            with self.times.during("barrier"):
                self.settle()
                return self.communicator.wait(
                    session.gather(name, payload, timeout_s=timeout_s, at=waits_in(name))
                )
        except GatherLostError as error:
            if self.agreement.has_state:
                log.warning("worker.buffers_differ", extra={"reason": str(error)})
            return [payload]


def open_job(
    communicator: Communicator,
    settings: WorkerSettings,
    *,
    times: StepTimes,
    departure: Departure,
    agreement: Agreement,
    examples: ExampleCounter,
) -> Job:
    """Connect a worker to the pservers, as soon as all of them serve.

    Raises:
        PlacementTimeoutError: if that takes too long.
        JobFailedError: if the job fails before.
        ChaosNotAllowedError: if the environment plans faults, and the settings allow none.
    """
    session = communicator.session
    member = session.member
    environment = read_environment()
    arm(environment, role="worker", chaos=settings.chaos, index=member.index)
    planned = faults_of(environment, rank=member.index, clock=communicator.clock)
    faults = chaos_faults(settings, communicator.clock, base=planned)
    author = Author(rank=member.index, incarnation=member.incarnation)

    async def connect() -> PServers:
        return PServers(
            await session.wait_placement(),
            author=author,
            locate=session.read_placement,
            clock=communicator.clock,
            call_timeout_s=settings.call_timeout_s,
            step_timeout_s=settings.barrier_timeout_s,
            tls=tls_of(settings, "worker"),
            secret=secret_of(settings),
            tracing=communicator.tracing,
            faults=lambda server: faults(f"pserver:{server}"),
        )

    pservers = communicator.wait(connect())
    pservers.dense = settings.dense_limits
    communicator.follow(pservers.follow)
    return Job(
        communicator=communicator,
        pservers=pservers,
        author=author,
        answering=Answering(communicator, pservers, author, departure),
        worker_num=session.worker_num,
        host=settings.host,
        times=times,
        departure=departure,
        agreement=agreement,
        examples=examples,
    )


def declare(
    job: Job,
    specs: Sequence[TableSpec],
    mode: TrainingMode,
    *,
    wire: WireDtype | None = None,
) -> int:
    """Make the tables on every pserver; every worker declares the same ones.

    Kernels that they need and that this machine, or a pserver's, lacks are compiled meanwhile.

    Args:
        job: The worker's.
        specs: The tables.
        mode: How they are trained.
        wire: How numbers travel; None as the mode says.

    Returns:
        The step that this worker begins with: as far as the slowest is if it comes late. In the
        place of a worker that died it is that one's next: in sync and LocalSGD the first of
        which a pserver lacks its part.

    Raises:
        IncarnationUsedError: if another process has written under this one's incarnation.
        FleetError: why a pserver didn't make the tables.
    """
    wire = mode.wire_dtype if wire is None else wire
    fields = {
        **job.author.fields(),
        "tables": [spec.to_wire() for spec in specs],
        "mode": mode.name,
        "worker_num": job.worker_num,
        "max_staleness": mode.max_staleness,
        "sync_batch_norm": mode.sync_batch_norm,
        "on_worker_loss": mode.on_worker_loss,
        "loss_reduction": mode.loss_reduction,
        "async_rate": mode.async_rate,
        "wire_dtype": wire,
    }
    timeout_s = job.pservers.step_timeout_s + _compile_own(job, specs, wire, mode)
    job.pservers.divides = _num_dense(job, specs) * 4 > job.pservers.dense.request_bytes
    has_written = job.author.has_written
    answers = job.communicator.wait(
        job.pservers.call_all("declare", fields, timeout_s=timeout_s)
    )
    if not has_written:
        require_unused(job.author, answers)
    job.agreement.loaded_from = LoadedFrom.of(answers)
    job.keeper.has_left = any(answer.fields.get("left") for answer in answers)
    steps = [int(answer.fields["step"]) for answer in answers]
    is_again = mode.name == "sync" or (mode.name == "localsgd" and job.has_returned)
    return min(steps) if is_again else max(steps)


def _compile_own(
    job: Job, specs: Sequence[TableSpec], wire: WireDtype, mode: TrainingMode
) -> float:
    """Have the kernels that this worker lacks; return for how long pservers may compile."""
    # Here, because a script needs them when it has joined a job.
    from paramfleet_shared.tables.kernels.basics import parts, readiness  # noqa: PLC0415

    own = (parts.OWN_ROWS,) if mode.name == "geo" else ()
    missing = (*own, *parts.parts_of((), wire))
    job.communicator.wait(readiness.compile_missing(missing, job.communicator.clock))
    storages = {spec.storage for spec in specs if spec.kind == "sparse"}
    return COMPILE_ALLOWANCE_S if parts.parts_of(storages, wire) else 0.0


def require_unused(author: Author, answers: Sequence[Message]) -> None:
    """Pass if no pserver has a change under the incarnation of a worker that has made none.

    Args:
        author: The worker, before its first change.
        answers: Of the pservers, to its declaration.

    Raises:
        IncarnationUsedError: if one has.
    """
    for server, answer in enumerate(answers):
        if answer.fields.get("has_written"):
            raise IncarnationUsedError(server=server, **author.fields())


def agree_on_dense(
    job: Job,
    blocks: Sequence[DenseBlock],
    *,
    also: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Start every worker from the same dense parameters and buffers.

    They are worker 0's, unless the pservers hold loaded ones, or it died before it could say
    them and the job goes on. One that comes late finds the parameters there, and takes the
    buffers that the others train with.

    Args:
        job: The worker's.
        blocks: The dense tables.
        also: Gives the pservers other first values, in the same workers and before any worker
            goes on; it has no effect where they have some.
    """
    session = job.communicator.session
    if job.author.rank == 0:
        _assign(job, blocks, also)
    if not session.has_passed(f"gather/{_DENSE}"):
        _load_buffers(job)
        job.begin_alike(_DENSE)
    else:
        take_current_buffers(job.communicator, job.agreement)
    if session.elastic:
        _assign(job, blocks, also)
    for block, values in zip(blocks, pull_dense(job, blocks), strict=True):
        block.install(values)


def pull_dense(
    job: Job,
    blocks: Sequence[DenseBlock],
    *,
    min_step: int = 0,
    wire: WireDtype = "float32",
) -> list[NDArray[np.float32]]:
    """Return the pservers' values of dense tables, float32 [P] each.

    Args:
        job: Whose pservers.
        blocks: The tables.
        min_step: Sync: steps that must be applied before.
        wire: How the values travel.
    """
    return job.communicator.wait(fetch_dense(job, blocks, min_step=min_step, wire=wire))


async def fetch_dense(
    job: Job,
    blocks: Sequence[DenseBlock],
    *,
    min_step: int = 0,
    wire: WireDtype = "float32",
    ask: Ask | None = None,
) -> list[NDArray[np.float32]]:
    """Do what ``pull_dense`` does, on the communicator's loop.

    Args:
        job: Whose pservers.
        blocks: The tables.
        min_step: Sync: steps that must be applied before.
        wire: How the values travel.
        ask: Pulls a plan once so many steps are applied; None asks the pservers.
    """
    if ask is None:
        ask = partial(_ask, job)
    if not job.pservers.divides:
        plan = dense_plan(job, blocks, wire=wire)
        return plan.join(await ask(plan, min_step))
    into = {block.name: np.empty(block.size, np.float32) for block in blocks}
    reading = (_read_piece(ask, plan, min_step, into) for plan in _divided(job, blocks, wire))
    await ends_of(reading, at_once=PIECES_AT_ONCE)
    return list(into.values())


async def fetch_exchanged(
    job: Job, block: DenseBlock, answers: Sequence[Message], index: int, *, wire: WireDtype
) -> NDArray[np.float32]:
    """Return a dense table's values after an exchange, float32 [P].

    Args:
        job: Whose pservers.
        block: The table.
        answers: Of the pservers; they hold the values unless there are too many.
        index: Which part of the exchange it was.
        wire: How the values travel.
    """
    if sum(len(answer.tensors[f"{index}.rows"]) for answer in answers) != block.size:
        (values,) = await fetch_dense(job, [block], wire=wire)
        return values

    def join() -> NDArray[np.float32]:
        return np.concatenate([decoded_part(answer, index, wire) for answer in answers])

    return await asyncio.to_thread(join) if job.pservers.divides else join()


def dense_plan(
    job: Job, blocks: Sequence[DenseBlock], *, wire: WireDtype = "float32"
) -> ReadPlan:
    """Describe a pull of dense tables."""
    reads = [Read(table=block.name, size=block.size, wire=wire) for block in blocks]
    return ReadPlan(reads, job.placement)


async def with_places(job: Job, error: Incomplete) -> Incomplete:
    """Return an error of who was waited for in vain that also says where they are.

    Args:
        job: This worker's.
        error: A pserver's.
    """
    if is_here():
        await hop()
    places = await job.communicator.session.whereabouts()
    named = [places.get(rank, "") for rank in error.missing]
    return type(error)(**{**error.facts, "places": named})


def slowest_of(answers: Sequence[Message]) -> int | None:
    """Return the least steps that any other worker has pushed, as all pservers know it."""
    leads = [answer.fields["slowest"] for answer in answers]
    return min((int(lead) for lead in leads if lead is not None), default=None)


def _load_buffers(job: Job) -> None:
    """Have worker 0's model begin with the buffers that were saved with the servers' tables.

    Raises:
        FleetError: if worker 0 can't read them, or they don't fit.
    """
    loaded = job.agreement.loaded_from
    if job.author.rank == 0 and loaded.folder and job.agreement.has_state:
        folder, manifest = loaded.read()
        with of_one_manifest(folder, manifest):
            buffers = buffers_to_load(job.agreement.model, folder, manifest)
        buffers.install()


def _assign(
    job: Job,
    blocks: Sequence[DenseBlock],
    also: Callable[[], Coroutine[Any, Any, None]] | None,
) -> None:
    """Give the pservers first values of their tables."""
    if also is not None:
        job.communicator.wait(also())
    for block in blocks:
        values = block.piece(slice(0, block.size))
        fields = {**job.author.fields(), "table": block.name, "only_if_new": True}
        messages = [
            Message(
                fields=fields,
                tensors={"rows": values[dense_slice(block.size, job.placement, server)]},
            )
            for server in range(job.placement.num_servers)
        ]
        job.communicator.wait(job.pservers.call("assign", messages))


async def _ask(job: Job, plan: ReadPlan, min_step: int) -> list[Message]:
    return await job.pservers.pull(plan, rank=job.author.rank, min_step=min_step)


async def _read_piece(
    ask: Ask, plan: ReadPlan, min_step: int, into: Mapping[str, NDArray[np.float32]]
) -> None:
    answers = await ask(plan, min_step)
    await asyncio.to_thread(plan.put, answers, into)


def _divided(job: Job, blocks: Sequence[DenseBlock], wire: WireDtype) -> Iterator[ReadPlan]:
    """Yield plans that pull the tables, none with more values of a pserver than a piece."""
    most = job.pservers.dense.piece_values
    reads: list[Read] = []
    left = most
    for block in blocks:
        longest = _num_held(job, block.size)
        for start in range(0, longest, most):
            piece = slice(start, min(start + most, longest))
            if reads and piece.stop - start > left:
                yield ReadPlan(reads, job.placement)
                reads, left = [], most
            reads.append(Read(table=block.name, size=block.size, wire=wire, piece=piece))
            left -= piece.stop - start
    yield ReadPlan(reads, job.placement)


def _num_dense(job: Job, specs: Sequence[TableSpec]) -> int:
    """Return how many dense values there are on the pserver that has most."""
    return sum(_num_held(job, spec.size) for spec in specs if spec.kind == "dense")


def _num_held(job: Job, size: int) -> int:
    """Return how many values of a dense table there are on the pserver that has most."""
    slices = [dense_slice(size, job.placement, s) for s in range(job.placement.num_servers)]
    return max(int(each.stop) - int(each.start) for each in slices)
