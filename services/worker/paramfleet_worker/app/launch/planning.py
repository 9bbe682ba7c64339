"""From settings to a plan: which processes this machine starts, and how."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.addresses import place_of, split_places
from paramfleet_shared.settings.config import resolve
from paramfleet_shared.system.processes.own_modules import module_command
from paramfleet_worker.app.launch.naming import launch_of
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.environment import JobFacts, role_environment, runtime_environment
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.topology import (
    FIRST_WORKER_PORT,
    Endpoint,
    Host,
    RedisAddress,
    Topology,
    TopologyError,
    parse_endpoint,
    parse_endpoints,
    parse_redis,
    roles_of,
)
from paramfleet_worker.process.addresses import hosts_of_this_machine, is_listening
from paramfleet_worker.process.ports import PortReservations

__all__ = [
    "COORDINATOR",
    "LOG_NAMES",
    "LOOPBACK",
    "REDIS",
    "LaunchPlan",
    "NotMyJobError",
    "plan_launch",
    "redis_to_start",
]

LOOPBACK = Host("127.0.0.1")

REDIS = ProcessName("redis", 0)

COORDINATOR = ProcessName("coordinator", 0)

LOG_NAMES = {
    "redis": "redislog",
    "coordinator": "coordinatorlog",
    "pserver": "serverlog",
    "worker": "workerlog",
}


class NotMyJobError(ContractError):
    """None of the job's addresses is this machine."""

    code = "contract.not_my_job"
    hosts: Sequence[str]
    own: str

    @override
    def describe(self) -> str:
        known = (
            f"this machine is {self.own}"
            if self.own
            else "no interface of this machine has them"
        )
        return (
            "no coordinator, pserver or worker of the job runs here: its hosts are "
            f"{', '.join(self.hosts)}, and {known}; say which one this machine is with "
            "--host_ip "
            "or POD_IP"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """What one launcher starts."""

    facts: JobFacts
    names: tuple[ProcessName, ...]
    """Coordinator, pservers and workers, in the order of their start."""
    redis: RedisAddress | None
    """The Redis to start first; None: it runs already, or on another machine, or the address of
    ``facts`` is empty and it gets a Unix socket."""
    script: tuple[str, ...]
    """The training script and its arguments."""
    elastic: bool = False
    """Whether the job goes on without workers that die."""
    checkpoint_dirs: str = ""
    """The folders of checkpoints that were given."""
    gpus: tuple[str, ...] = ()
    """The numbers of the GPUs of this machine's workers, in their order; empty hides none."""
    data_dir: str = ""
    """Absolute path below which each pserver has its training on the disk; empty for none."""
    durability: str = "async"
    """How pservers write there."""
    chaos: bool = False
    """Whether operators may hurt its processes."""
    rerun_script: bool = False
    """Whether the script is run again for a pserver that is started again."""
    restarts: int = 0
    """How often in a row a process is started again."""
    restarted: frozenset[str] = frozenset()
    """The roles of those that are."""
    processes: int = 0
    """Of the whole job, how many processes for pservers start; 0 for all that have an
    address."""
    groups: int = 0
    """Pservers' groups where the coordinator plans who hosts them; 0 if each is a process."""
    replicas: int = 0
    """Followers of each group."""
    on_ray: bool = False
    """Whether its processes are actors of a Ray cluster."""
    share_imports: bool = False
    """Whether the processes that run the script may be forks of one that has imported."""

    @property
    def alone(self) -> bool:
        """Tell whether no other machine takes part."""
        topology = self.facts.topology
        return len(self.names) == 1 + self.num_processes + len(topology.workers)

    @property
    def num_processes(self) -> int:
        """Return how many processes for pservers the whole job starts with."""
        return self.processes or len(self.facts.topology.servers)

    @property
    def folder_name(self) -> str:
        """Return the name of the job's folder here.

        It is the job's where its coordinator is. Others have their address in it, too, so that
        one machine can have several parts of a job.
        """
        if ProcessName("coordinator", 0) in self.names:
            return self.facts.job
        host = self.facts.topology.endpoint_of(self.names[0]).host
        return f"{self.facts.job}@{re.sub('[^A-Za-z0-9.-]', '_', host)}"

    @staticmethod
    def own_redis(socket: str) -> RedisAddress:
        """Return the address of a Redis on a Unix socket."""
        return RedisAddress(host=LOOPBACK, port=0, password="", socket=socket)

    def log_of(self, name: ProcessName) -> Path:
        """Return the file that gets a process's output."""
        return Path(self.facts.log_dir) / f"{LOG_NAMES[name.role]}.{name.index}"

    @property
    def own_log(self) -> Path:
        """Return the file that gets what the launcher itself says.

        Launchers of several machines may share the folder: only one has the coordinator.
        """
        first = self.names[0]
        part = "0" if first == COORDINATOR else f"{first.role}-{first.index}"
        return Path(self.facts.log_dir) / f"launcherlog.{part}"

    def command_of(self, name: ProcessName, inherited: Mapping[str, str]) -> list[str]:
        """Return the command of a coordinator, pserver or worker.

        Raises:
            SettingError: if the coordinator's settings in the environment are wrong.
            UnknownSettingError: if nothing reads one.
        """
        if name.role != "coordinator":
            return [sys.executable, *self.script]
        topology = self.facts.topology
        servers = self.groups or len(topology.servers)
        too_few = servers > CoordinatorSettings().num_shards
        more_shards = too_few and not _sets_shards(inherited)
        return module_command(
            "paramfleet_coordinator",
            f"--worker-num={len(topology.workers)}",
            f"--server-num={servers}",
            f"--port={topology.coordinator.port}",
            *([f"--num-shards={servers}"] if more_shards else []),
            *(["--elastic"] if self.elastic else []),
            *([f"--server-processes={self.num_processes}"] if self.groups else []),
            *([f"--replicas={self.replicas}"] if self.replicas else []),
        )

    @property
    def keeps_arguments(self) -> bool:
        """Tell whether pservers are to be started again without the script."""
        return self.restarts > 0 and not self.rerun_script

    @staticmethod
    def command_of_server(arguments: Mapping[str, str]) -> list[str]:
        """Return the command of a pserver without the script.

        Args:
            arguments: What the script has given it.
        """
        options = (
            f"--{name.replace('_', '-')}={arguments[name]}" for name in sorted(arguments)
        )
        return module_command("paramfleet_pserver", *options)

    def shared_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return what the environments of all processes have in common."""
        roles = sum(other.role in {"worker", "pserver"} for other in self.names)
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
        runtime = runtime_environment(inherited, num_cores=cores or 1, num_local_roles=roles)
        return {**inherited, **runtime}

    def environment_of(self, name: ProcessName, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of a coordinator, pserver or worker."""
        shared = self.shared_environment(inherited)
        dirs = _checkpoint_dirs(self.checkpoint_dirs, inherited)
        more = {"PARAMFLEET_CHECKPOINT_DIRS": dirs} if dirs else {}
        if self.chaos:
            more["PARAMFLEET_CHAOS"] = "1"
        if self.gpus:
            more["CUDA_VISIBLE_DEVICES"] = self._gpu_of(name)
        if self.data_dir and name.role == "pserver":
            more["PARAMFLEET_PSERVER__DATA_DIR"] = self.data_dir
            more["PARAMFLEET_PSERVER__DURABILITY"] = self.durability
            more["PARAMFLEET_PSERVER__INDEX"] = str(name.index)  # its folder has its index
        returns = "worker" in self.restarted and not self.elastic
        if returns and name.role == "coordinator":
            more[_RETURN] = inherited.get(_RETURN, _RETURN_S)
        if self.groups and name.role == "pserver":
            more["PARAMFLEET_PSERVER__HOSTING"] = "planned"
            more["PARAMFLEET_PSERVER__INDEX"] = str(name.index)  # as the launcher names it
        return {**shared, **role_environment(name, self.facts), **more}

    def _gpu_of(self, name: ProcessName) -> str:
        """Return the GPU that a process sees; pservers and the coordinator see none."""
        own = [each for each in self.names if each.role == "worker"]
        return self.gpus[own.index(name)] if name in own else ""


_RETURN, _RETURN_S = "PARAMFLEET_COORDINATOR__WORKER_RETURN_S", "60"
"""How long the job waits for a worker that is started again: a script's start takes a while."""


def plan_launch(
    settings: LaunchSettings,
    *,
    script: tuple[str, ...],
    pod_ip: str,
    reservations: PortReservations,
) -> LaunchPlan:
    """Work out this machine's part.

    Args:
        settings: What the user asked for.
        script: The training script and its arguments.
        pod_ip: ``POD_IP`` of the environment; empty if there is none.
        reservations: Holds the ports this plan picks; close it after the launch.

    Raises:
        TopologyError: if the addresses don't describe a job.
        NotMyJobError: if no process of the job belongs to this machine.
    """
    if settings.several_machines:
        topology = _named_topology(settings)
        own = settings.host_ip or pod_ip
    else:
        topology = _local_topology(settings, reservations)
        own = ""
    url = settings.redis
    address = parse_redis(url) if url else None
    processes = settings.process_num if settings.is_planned else None
    processes = processes or len(topology.servers)
    hosts = topology.hosts | ({address.host} if address is not None else set())
    mine = hosts_of_this_machine(hosts, own=Host(own) if own else None)
    every = roles_of(topology, mine)
    names = tuple(n for n in every if n.role != "pserver" or n.index < processes)
    redis = redis_to_start(address, mine)
    gpus = settings.gpus_of_workers
    num_workers = sum(name.role == "worker" for name in names)
    if gpus and len(gpus) != num_workers:
        rule = f"this machine has {num_workers} workers of the job, and each has one GPU"
        raise TopologyError(option="--gpus", value=settings.gpus, rule=rule)
    if not names:
        raise NotMyJobError(hosts=sorted(topology.hosts), own=own)
    facts = JobFacts(
        job=settings.job,
        redis=url,
        topology=topology,
        log_dir=str(settings.log_dir.absolute()),
        launch=launch_of(settings),
    )
    return LaunchPlan(
        facts=facts,
        names=names,
        redis=redis,
        script=script,
        elastic=settings.elastic,
        checkpoint_dirs=settings.checkpoint_dirs,
        gpus=gpus,
        data_dir=_absolute(settings.data_dir) if settings.data_dir else "",
        durability=settings.durability,
        chaos=settings.chaos,
        rerun_script=settings.rerun_script,
        restarts=settings.restarts,
        restarted=settings.restarted,
        processes=processes,
        groups=(settings.group_num or processes) if settings.is_planned else 0,
        replicas=settings.replicas,
        share_imports=settings.share_imports,
    )


def _checkpoint_dirs(given: str, inherited: Mapping[str, str]) -> str:
    """Return the setting of that name for every process; empty leaves it at its default.

    Where an operator's checkpoints go is a folder of whoever launches, as the working folder.
    """
    given = given or inherited.get("PARAMFLEET_CHECKPOINT_DIRS", "")
    names = split_places(given)
    own = inherited.get("PARAMFLEET_COORDINATOR__CHECKPOINT_DIR", "")
    if names:
        names.append(own or CoordinatorSettings().checkpoint_dir)
    elif own:
        names = [".", own]
    return os.pathsep.join(map(_absolute, names))


def _absolute(name: str) -> str:
    return str(place_of(name).expanduser().absolute())


def _sets_shards(environment: Mapping[str, str]) -> bool:
    """Tell whether the user has chosen the number of shards for the coordinator.

    Raises:
        SettingError: if its settings are wrong.
        UnknownSettingError: if nothing reads one.
    """
    file = environment.get("PARAMFLEET_CONFIG")
    resolved = resolve(
        CoordinatorSettings,
        section="coordinator",
        arguments={"worker_num": 1, "server_num": 1},
        environment=environment,
        file=Path(file) if file else None,
    )
    return resolved.origins["num_shards"] != "default"


def _local_topology(settings: LaunchSettings, reservations: PortReservations) -> Topology:
    num_workers = settings.worker_num or len(settings.gpus_of_workers) or 1
    return Topology(
        servers=tuple(reservations.reserve(LOOPBACK) for _ in range(settings.group_num or 1)),
        workers=tuple(reservations.reserve(LOOPBACK) for _ in range(num_workers)),
        coordinator=reservations.reserve(LOOPBACK),
    )


def _named_topology(settings: LaunchSettings) -> Topology:
    topology = Topology(
        servers=parse_endpoints(settings.servers, option="--servers", first_port=None),
        workers=parse_endpoints(
            settings.workers, option="--workers", first_port=FIRST_WORKER_PORT
        ),
        coordinator=parse_endpoint(settings.coordinator, option="--coordinator"),
    )
    for option, number, endpoints in (
        ("--server_num", settings.process_num, topology.servers),
        ("--worker_num", settings.worker_num, topology.workers),
    ):
        if number not in {None, len(endpoints)}:
            rule = f"the list of addresses has {len(endpoints)}; leave the number out"
            raise TopologyError(option=option, value=str(number), rule=rule)
    return topology


def redis_to_start(address: RedisAddress | None, mine: frozenset[Host]) -> RedisAddress | None:
    """Return the Redis that this machine must start: its own, if none listens there yet."""
    if address is None or address.host not in mine:
        return None
    return None if is_listening(Endpoint(address.host, address.port)) else address
