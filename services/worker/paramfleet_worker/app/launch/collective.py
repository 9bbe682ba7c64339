"""``paramfleet launch`` of a collective job: torch's elastic agent starts the workers.

The agent, which also watches them, is torchrun's own. Ours are the options, the lines of the
workers, and how the end is reported.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from typing_extensions import override

from paramfleet.training.collective.errors import PeersLostError
from paramfleet.training.localsgd.lost_ranks import SynchronizationLostError
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.system.processes.ending import VARIABLE as ENDINGS
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.launch.agent import Failures, run_agent
from paramfleet_worker.app.launch.former_logs import set_aside
from paramfleet_worker.app.launch.planning import NotMyJobError
from paramfleet_worker.app.launch.reporting.advice import Advice
from paramfleet_worker.app.launch.reporting.reasons import found_of
from paramfleet_worker.app.launch.reporting.verdict import Verdict
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.causes import Cause
from paramfleet_worker.core.environment import runtime_environment
from paramfleet_worker.core.events import ProcessName, describe_exit
from paramfleet_worker.core.topology import Host
from paramfleet_worker.process.addresses import hosts_of_this_machine
from paramfleet_worker.process.children.ending import read_ending
from paramfleet_worker.process.streams import Streams
from paramfleet_worker.process.terminal.console import Console

__all__ = ["MachinesMissingError", "launch_collective"]

LAST_OUTPUT_WITHIN_S = 0.3
"""How long the output of a process that ended may take to come through its pipe."""

MISSED = (PeersLostError.__name__, SynchronizationLostError.__name__)
"""What a worker raises that misses another one."""

KILLED = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS}
"""How a worker ends that isn't one of those who missed another."""

MEET_WITHIN_S = 120
"""How long the machines of a job wait for each other."""


class MachinesMissingError(UnavailableError):
    """The machines of a collective job didn't find each other."""

    code = "unavailable.machines_missing"
    endpoint: str
    machines: int
    waited_s: float
    reason: str
    sentence = (
        "rendezvous of {machines} machines at {endpoint}: gave up after {waited_s:.0f} s: "
        "{reason}; start the same command on each of them"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """This machine's part."""

    num_workers: int
    """Workers here, and on every other machine."""
    machine: int
    """Position among the machines."""
    machines: tuple[str, ...]
    """Their addresses; one name if the job is here alone."""
    port: int
    """Of the rendezvous address on the first of several."""

    @property
    def names(self) -> list[ProcessName]:
        """The workers here, by rank."""
        first = self.machine * self.num_workers
        return [ProcessName("worker", first + local) for local in range(self.num_workers)]

    @property
    def endpoint(self) -> str:
        """The address of the rendezvous; port 0 is a free one."""
        return f"{self.machines[0]}:{self.port if len(self.machines) > 1 else 0}"


class _Pipes(LogsSpecs):
    """Gives torch's agent the destinations of the workers' output."""

    def __init__(self, streams: Streams, names: Sequence[ProcessName], folder: str) -> None:
        super().__init__(log_dir=folder)
        self._streams = streams
        self._names = names
        self._folder = folder

    @property
    @override
    def root_log_dir(self) -> str:
        return self._folder

    @override
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        paths = {local: self._streams.paths_of(self._names[local]) for local in envs}
        errors = {local: str(Path(self._folder) / f"error{local}.json") for local in envs}
        return LogsDest(
            stdouts={local: out for local, (out, _) in paths.items()},
            stderrs={local: err for local, (_, err) in paths.items()},
            error_files=errors,
        )


def launch_collective(
    settings: LaunchSettings,
    script: tuple[str, ...],
    environment: Mapping[str, str],
    console: Console,
) -> int:
    """Start this machine's workers and stay until they have ended.

    Args:
        settings: What the user asked for.
        script: The training script and its arguments.
        environment: What the workers inherit.
        console: Where their lines are shown.

    Returns:
        0 if every worker ended with 0, else how the first one that didn't ended.

    Raises:
        NotMyJobError: if ``--ips`` doesn't name this machine.
        MachinesMissingError: if the other machines don't come in time.
        OSError: if a log can't be written.
    """
    if not console.shows_all:  # the agent names who failed, too, and its traceback
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    plan = _plan(settings, pod_ip=environment.get("POD_IP", ""))
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    if len(plan.machines) == 1:
        set_aside(settings.log_dir)
    os.environ.update(_additions(settings, plan, environment))  # noqa: TID251 -- the agent hands its own on
    streams = Streams(plan.names, settings.log_dir, console)
    total = plan.num_workers * len(plan.machines)
    console.say(f"collective job: {total} workers; logs in {settings.log_dir.absolute()}")

    # torch's agent starts each worker in a session of its own
    command = tied([sys.executable, *script])
    with tempfile.TemporaryDirectory(prefix="paramfleet-") as folder:
        os.environ[ENDINGS] = folder  # noqa: TID251 -- as above
        ends = _Ends(streams, Path(folder), Advice(None))

        def restart(number: int, failures: Failures) -> None:
            _say_restart(ends, console, failures, f"{number} of {settings.restarts}")

        try:
            run_agent(
                _rendezvous(plan),
                command,
                num_workers=plan.num_workers,
                max_restarts=settings.restarts,
                logs=_Pipes(streams, plan.names, folder),
                before_restart=restart,
            )
        except ChildFailedError as error:
            streams.drain(LAST_OUTPUT_WITHIN_S)
            return _tell(ends, console, error.failures, settings)
        except SignalException as error:
            number = int(error.sigval)
            console.say(f"stopped by {signal.Signals(number).name}")
            return 128 + number
        except (DistError, RendezvousError) as error:
            raise MachinesMissingError(
                endpoint=plan.endpoint,
                machines=len(plan.machines),
                waited_s=MEET_WITHIN_S,
                reason=str(error).partition("\n")[0],
            ) from error
        finally:
            streams.drain(LAST_OUTPUT_WITHIN_S)
            console.let_all_go()
    return 0


def _plan(settings: LaunchSettings, *, pod_ip: str) -> _Plan:
    """Work out this machine's part.

    Raises:
        NotMyJobError: if ``--ips`` doesn't name this machine.
    """
    gpus = settings.gpus.split(",") if settings.gpus else []
    count = settings.nproc_per_node or len(gpus) or 1
    machines = tuple(each.strip() for each in settings.ips.split(",") if each.strip())
    if not machines:
        machines, mine = ("127.0.0.1",), 0
    else:
        own = settings.host_ip or pod_ip
        hosts = [Host(each) for each in machines]
        found = hosts_of_this_machine(hosts, own=Host(own) if own else None)
        if not found:
            raise NotMyJobError(hosts=machines, own=own)
        mine = min(hosts.index(host) for host in found)
    return _Plan(num_workers=count, machine=mine, machines=machines, port=settings.master_port)


def _additions(
    settings: LaunchSettings, plan: _Plan, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return what the workers' environment has beside the agent's."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    added = runtime_environment(
        inherited, num_cores=cores or 1, num_local_roles=plan.num_workers
    )
    added["PARAMFLEET_LOG_DIR"] = str(settings.log_dir.absolute())
    if len(plan.machines) > 1:
        added["POD_IP"] = plan.machines[plan.machine]
    if settings.gpus:
        added["CUDA_VISIBLE_DEVICES"] = settings.gpus.replace(" ", "")
    return added


def _rendezvous(plan: _Plan) -> RendezvousParameters:
    """Return where and how the machines of the job find each other."""
    several = len(plan.machines) > 1
    configs: dict[str, Any] = {}
    if several:
        configs = {"rank": plan.machine, "timeout": MEET_WITHIN_S}
    return RendezvousParameters(
        backend="static" if several else "c10d",
        endpoint=plan.endpoint,
        run_id="paramfleet",
        min_nodes=len(plan.machines),
        max_nodes=len(plan.machines),
        **configs,
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    """What is known of workers that ended."""

    streams: Streams
    folder: Path
    """Where they write down what ends them."""
    advice: Advice

    def found(self, name: ProcessName, failures: Failures) -> Cause:
        """Return what is known of one of those that failed."""
        failure = failures[name.index]
        ending = read_ending(self.folder, failure.pid)
        how = describe_exit(failure.exitcode)
        return found_of(how, ending, partial(self.streams.tail, name))


def _say_restart(ends: _Ends, console: Console, failures: Failures, number: str) -> None:
    """Say which worker failed, and that all are started again."""
    if failures:
        name = _first_to_fail(ends.streams, failures)
        error = ends.found(name, failures).error
        why = f" ({error})" if error else ""
        console.say(f"{name.label} {describe_exit(failures[name.index].exitcode)}{why}")
    console.let_all_go()
    console.say(f"restart {number}: all workers of this machine start again")


def _tell(ends: _Ends, console: Console, failures: Failures, settings: LaunchSettings) -> int:
    """Say which worker failed, and why; return the exit code."""
    streams = ends.streams
    name = _first_to_fail(streams, failures)
    code, restarts = failures[name.index].exitcode, settings.restarts
    times = f" after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
    found = ends.found(name, failures)
    verdict = Verdict(
        begin=f"the job failed{times}",
        who=name.label,
        how=describe_exit(code),
        reason=found.error,
        found=found,
        advice=ends.advice.about(name, how=describe_exit(code), reason=found.error, local=True),
        log=streams.log_of(name),
        log_dir=str(settings.log_dir.absolute()),
        tail=partial(streams.tail, name),
    )
    verdict.show(console, stopping="")
    console.fail(verdict.last(console))
    return code if code > 0 else 128 - code


def _first_to_fail(streams: Streams, failures: Failures) -> ProcessName:
    """Return which worker failed.

    The first to end isn't always to blame: those who missed another say so in their last
    lines, and torch's agent stops the rest by SIGTERM.
    """

    def blame(rank: int) -> tuple[bool, bool, bool, int]:
        failure = failures[rank]
        last = "\n".join(streams.tail(ProcessName("worker", rank), 1))
        missed = any(error in last for error in MISSED)
        was_stopped = failure.exitcode == -signal.SIGTERM
        return missed, was_stopped, failure.exitcode not in KILLED, failure.timestamp

    return ProcessName("worker", min(failures, key=blame))
