"""paramfleet: a job of one pserver and one worker, with its registry and coordinator."""

import itertools

import numpy as np
from numpy.typing import NDArray

from paramfleet.communicator import Communicator
from paramfleet.pservers import PServers
from paramfleet.requests import Author, Read, ReadPlan, Rows, Write, write_messages
from paramfleet_shared.config import JobSettings
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from peer.work import CALL_TIMEOUT_S, LR, Client, Pulled, Work

__all__ = ["OursClient", "connect"]

_TABLE = "rows"


class OursClient:
    """What a training process does: plan here, call on the communicator's loop, wait.

    Args:
        work: For the width of rows.
        redis: Address of the job's registry.
        job: The job's name.
    """

    def __init__(self, work: Work, redis: str, job: str) -> None:
        self._dim = work.dim
        self._communicator = Communicator()
        self._communicator.start()
        self._sequences = itertools.count(1)
        settings = JobSettings(redis=redis, job=job, call_timeout_s=CALL_TIMEOUT_S)
        self._session = self._communicator.wait(self._join(settings))
        self._lease = self._communicator.submit(self._session.run())
        self._pservers = self._communicator.wait(self._connect())
        member = self._session.member
        self._author = Author(rank=member.index, incarnation=member.incarnation)
        self._declare()

    def pull(self, ids: NDArray[np.int64]) -> Pulled:
        """Return the rows of ids, sorted by shard."""
        unique, _, offsets = partition(ids, self._pservers.placement.num_shards)
        rows = Rows(unique, offsets)
        read = Read(table=_TABLE, rows=rows, dim=self._dim, create=True)
        plan = ReadPlan([read], self._pservers.placement)
        messages = plan.messages(rank=self._author.rank, min_step=0)
        answers = self._communicator.wait(self._pservers.call("pull", messages))
        return Pulled(unique, plan.join(answers)[0], rows)

    def push(self, pulled: Pulled, grads: NDArray[np.float32]) -> None:
        """Step rows."""
        sequence = next(self._sequences)
        rows: Rows = pulled.route
        write = Write(table=_TABLE, sequence=sequence, values=grads, rows=rows, lr=LR)
        fields = {**self._author.fields(), "step": sequence, "weight": 1.0}
        messages = write_messages(
            [write], self._pservers.placement, fields, values_name="grads"
        )
        self._communicator.wait(self._pservers.call("push", messages))

    def close(self) -> None:
        """Finish the job and leave it."""
        self._communicator.wait(self._pservers.close())
        self._communicator.wait(self._session.mark_done())
        self._lease.result(CALL_TIMEOUT_S)
        self._communicator.wait(self._session.leave())
        self._communicator.close()

    async def _join(self, settings: JobSettings) -> JobSession:
        return await JobSession.join(
            settings,
            role="worker",
            index=0,
            endpoint="",
            admin="",
            clock=self._communicator.clock,
        )

    async def _connect(self) -> PServers:
        return PServers(
            await self._session.wait_placement(),
            clock=self._communicator.clock,
            call_timeout_s=CALL_TIMEOUT_S,
            step_timeout_s=CALL_TIMEOUT_S,
        )

    def _declare(self) -> None:
        spec = TableSpec(
            name=_TABLE,
            kind="sparse",
            dim=self._dim,
            num_shards=self._pservers.placement.num_shards,
            initializer=InitializerSpec(kind="zeros"),
            optimizer=OptimizerSpec(rule="sgd"),
        )
        fields = {
            **self._author.fields(),
            "tables": [spec.to_wire()],
            "mode": "async",
            "worker_num": 1,
            "max_staleness": None,
        }
        self._communicator.wait(self._pservers.call_all("declare", fields))


def connect(work: Work, redis: str, job: str) -> Client:
    """Return a client that has joined the job."""
    return OursClient(work, redis, job)
