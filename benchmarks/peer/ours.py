"""paramfleet: a worker of a job, with what a training process does around its calls."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paramfleet.training.modes.gradients import TableGradient
from paramfleet.training.modes.outgoing import Outgoing
from paramfleet.transport.communicator import Communicator
from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author, ReadPlan, write_messages
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.net.secret import secret_of
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings, read_environment, resolve
from paramfleet_shared.tables.encoding import WireDtype
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from peer.work import CALL_TIMEOUT_S, LR, Client, Pulled, Work

__all__ = ["OursTable", "OursWorker", "connect"]


class OursWorker:
    """A member of a job, connected to its pservers.

    Args:
        redis: Address of the job's registry.
        job: The job's name.
        index: Which worker this is.
        worker_num: How many the job has.
        through: Makes of a pserver's endpoint the one to call instead of it.
        environment: Where settings are read; None is this process's.
    """

    def __init__(
        self,
        redis: str,
        job: str,
        *,
        index: int = 0,
        worker_num: int = 1,
        through: Callable[[str], str] = lambda endpoint: endpoint,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.communicator = Communicator()
        self.communicator.start()
        self._worker_num = worker_num
        self._through = through
        given = {"redis": redis, "job": job, "call_timeout_s": CALL_TIMEOUT_S}
        settings = resolve(
            JobSettings,
            section="",
            arguments=given,
            environment=read_environment() if environment is None else environment,
        ).value
        self._secret = secret_of(settings)
        self._session = self.communicator.wait(self._join(settings, index))
        self._lease = self.communicator.submit(self._session.run())
        self.pservers = self.communicator.wait(self._connect())
        member = self._session.member
        self.author = Author(rank=member.index, incarnation=member.incarnation)

    def table(self, name: str, dim: int, wire: WireDtype = "float32") -> "OursTable":
        """Declare a table of zeros that SGD steps, and whose numbers travel as ``wire``."""
        spec = TableSpec(
            name=name,
            kind="sparse",
            dim=dim,
            num_shards=self.pservers.placement.num_shards,
            initializer=InitializerSpec(kind="zeros"),
            optimizer=OptimizerSpec(rule="sgd"),
        )
        fields = {
            **self.author.fields(),
            "tables": [spec.to_wire()],
            "mode": "async",
            "worker_num": self._worker_num,
            "max_staleness": None,
        }
        self.communicator.wait(self.pservers.call_all("declare", fields))
        return OursTable(self, spec, wire)

    def close(self) -> None:
        """Finish the job and leave it."""
        self.communicator.wait(self.pservers.close())
        self.communicator.wait(self._session.mark_done())
        self._lease.result(CALL_TIMEOUT_S)
        self.communicator.wait(self._session.leave())
        self.communicator.close()

    async def _join(self, settings: JobSettings, index: int) -> JobSession:
        return await JobSession.join(
            settings,
            role="worker",
            index=index,
            endpoint="",
            admin="",
            clock=self.communicator.clock,
        )

    async def _connect(self) -> PServers:
        placement = await self._session.wait_placement()
        endpoints = tuple(self._through(endpoint) for endpoint in placement.endpoints)
        return PServers(
            replace(placement, endpoints=endpoints),
            author=Author(rank=0, incarnation=1),
            clock=self.communicator.clock,
            call_timeout_s=CALL_TIMEOUT_S,
            step_timeout_s=CALL_TIMEOUT_S,
            secret=self._secret,
        )


class OursTable:
    """One table of a worker: plan here, call on the communicator's loop, wait.

    Args:
        worker: Whose.
        spec: The table, declared.
        wire: How rows and gradients travel.
    """

    def __init__(self, worker: OursWorker, spec: TableSpec, wire: WireDtype) -> None:
        self._worker = worker
        self._pservers = worker.pservers
        self._spec = spec
        self._wire = wire
        self._outgoing = Outgoing([spec], self._pservers.placement, wire)
        self._writing = threading.Lock()  # what narrowing loses of gradients is kept

    def pull(self, ids: NDArray[np.int64]) -> Pulled:
        """Return the rows of ids, sorted by shard."""
        placement, by_id = self._pservers.placement, self._wire != "float32"
        unique, _, offsets = partition(ids, placement.num_shards, by_id=by_id)
        rows = RowIds(unique, offsets)
        read = self._outgoing.read(self._spec.name, rows)
        plan = ReadPlan([read], placement)
        messages = plan.messages(**self._worker.author.fields(), min_step=0)
        answers = self._worker.communicator.wait(
            self._pservers.call("pull", messages),
            meanwhile=partial(self._outgoing.find_rest, read),
        )
        return Pulled(unique, plan.join(answers)[0], rows)

    def push(self, pulled: Pulled, grads: NDArray[np.float32]) -> None:
        """Step rows."""
        gradient = TableGradient(name=self._spec.name, rows=pulled.route, grads=grads, lr=LR)
        with self._writing:
            write = self._outgoing.write(gradient)
        change = self._worker.author.change()
        fields = {**change, "step": change["sequence"], "weight": 1.0}
        messages = write_messages(
            [write], self._pservers.placement, fields, values_name="grads"
        )
        self._call("push", messages)

    def exact(self) -> Client:
        """Return the same table with rows and gradients as float32."""
        if self._wire == "float32":
            return self
        return OursTable(self._worker, self._spec, "float32")

    def close(self) -> None:
        """Let the worker leave."""
        self._worker.close()

    def _call(self, op: str, messages: list[Message]) -> list[Message]:
        return self._worker.communicator.wait(self._pservers.call(op, messages))


def connect(work: Work, redis: str, job: str, wire: WireDtype = "float32") -> Client:
    """Return a client that has joined the job."""
    return OursWorker(redis, job).table("rows", work.dim, wire)
