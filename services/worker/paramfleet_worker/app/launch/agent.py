"""torch's elastic agent, which starts the workers of a collective job, and starts them again.

Ours is what becomes of a former start: its workers have two seconds to end, whatever they
have started ends with them, and the launcher receives who had failed.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry
from typing_extensions import override

__all__ = ["STOP_WITHIN_S", "Failures", "run_agent"]

STOP_WITHIN_S = 2
"""From SIGTERM to SIGKILL, of workers that outlive the first one's failure."""

_MONITOR_S = 0.1

Failures = Mapping[int, ProcessFailure]
"""How workers ended that failed, by rank."""


def run_agent(
    rendezvous: RendezvousParameters,
    command: Sequence[str],
    *,
    num_workers: int,
    max_restarts: int,
    logs: LogsSpecs,
    before_restart: Callable[[int, Failures], None],
) -> None:
    """Start this machine's workers and stay until they have ended.

    Args:
        rendezvous: Where the machines of the job find each other.
        command: Of each worker.
        num_workers: Here.
        max_restarts: How often all are started again when one has failed.
        logs: Where their output goes.
        before_restart: Is called with the number of the restart, from 1, and the failures,
            when no worker is left.

    Raises:
        ChildFailedError: if one failed once more.
        SignalException: if this process is told to stop.
        DistError: if the machines don't find each other.
        RendezvousError: the same.
    """
    program, *words = command
    several = rendezvous.backend == "static"
    host, _, port = rendezvous.endpoint.rpartition(":")
    handler = rendezvous_registry.get_rendezvous_handler(rendezvous)
    spec = WorkerSpec(
        role="default",
        local_world_size=num_workers,
        entrypoint=program,
        args=tuple(words),
        rdzv_handler=handler,
        max_restarts=max_restarts,
        monitor_interval=_MONITOR_S,
        master_addr=host if several else None,
        master_port=int(port) if several else None,
    )
    result = _Agent(spec, logs, before_restart).run()
    handler.shutdown()
    if result.is_failed():
        raise ChildFailedError(name=program, failures=result.failures)


class _Agent(LocalElasticAgent):
    """Starts workers, watches them, and starts all again when one has failed.

    Args:
        spec: Of the workers.
        logs: Where their output goes.
        before_restart: As ``run_agent`` has it.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs: LogsSpecs,
        before_restart: Callable[[int, Failures], None],
    ) -> None:
        super().__init__(spec, logs)
        self._before_restart = before_restart
        self._failures: Failures = {}
        self._restarts = 0

    @override
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        self._failures = result.failures
        return result

    @override
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._stop_workers(worker_group)
        self._restarts += 1
        self._before_restart(self._restarts, self._failures)
        super()._restart_workers(worker_group)

    @override
    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = STOP_WITHIN_S
    ) -> None:
        context = self._pcontext
        if context is None:
            return
        groups = list(context.pids().values())
        context.close(death_sig, min(timeout, STOP_WITHIN_S))
        super()._shutdown(death_sig)
        if self._worker_group.state is WorkerState.SUCCEEDED:
            return  # what a script leaves on purpose may stay
        for group in groups:  # each worker leads one, with what it has started
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
