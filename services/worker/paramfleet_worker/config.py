"""Settings of the launcher."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from paramfleet_shared.settings.config import (
    JobSettings,
    SettingError,
    check_ranges,
    check_texts,
)
from paramfleet_shared.settings.security import SecuritySettings

__all__ = [
    "ExportFormat",
    "ImportFormat",
    "LaunchSettings",
    "PaddleAccessor",
    "PaddleRule",
]

ExportFormat = Literal["npy", "safetensors", "word2vec", "paddle"]
"""What ``paramfleet export`` can write."""

ImportFormat = Literal["npy", "safetensors", "word2vec", "paddle", "dcp"]
"""What ``paramfleet checkpoint import`` can read."""

PaddleAccessor = Literal[
    "SparseAccessor", "CtrCommonAccessor", "CtrDoubleAccessor", "CtrDymfAccessor"
]
PaddleRule = Literal[
    "SparseNaiveSGDRule",
    "SparseAdaGradSGDRule",
    "SparseAdaGradV2SGDRule",
    "StdAdaGradSGDRule",
    "SparseAdamSGDRule",
    "SparseSharedAdamSGDRule",
]

_RESTARTS_WITH_DATA = 3
"""How often in a row a process is started again, if it isn't said."""

_MOST_SERVERS = 65_536

_USUAL_REDIS = "redis://127.0.0.1:6379/0"

_RANGES: dict[str, tuple[float, float]] = {
    "worker_num": (1, 65_536),
    "nproc_per_node": (1, 1024),
    "max_restarts": (0, 1_000_000),
    "replicas": (0, 1),
    "ray_cpus": (0.0, 1e5),
    "ray_gpus": (0.0, 1e4),
    "master_port": (1, 65_535),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSettings(SecuritySettings):
    """What ``paramfleet launch`` starts, and where.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    server_num: str | int | None = None
    """Pservers to start; empty is 1, or as many as --servers names. MIN:MAX starts MIN of them
    for MAX groups of shards, so that the job can be scaled up to MAX pservers, and down."""

    replicas: int = 0
    """Followers of each pserver: other processes that keep a copy, one of which goes on with it
    when its process dies; 0 or 1."""

    worker_num: int | None = None
    """Workers to start; empty is 1, or as many as --workers names."""

    elastic: bool = False
    """Async and GEO: go on without workers that die; others may come and leave. gpubox with
    one worker: let another process take its place."""

    on: Literal["here", "ray"] = "here"
    """Where processes run: on the machines that are named, or as actors of a Ray cluster."""

    ray_cpus: float = 1.0
    """On Ray: CPUs that each worker and pserver asks for."""

    ray_gpus: float = 0.0
    """On Ray: GPUs that each worker asks for."""

    log_dir: Path = Path("log")
    """Folder that gets serverlog.N, workerlog.N, coordinatorlog.0, redislog.0 and
    launcherlog.0."""

    servers: str = ""
    """Several machines: ip:port of every pserver of the job, with commas between."""

    workers: str = ""
    """Several machines: ip or ip:port of every worker of the job, with commas between."""

    coordinator: str = ""
    """Several machines: ip:port of the coordinator."""

    redis: str = ""
    """Address of the registry; empty starts one on this machine for this job alone."""

    job: str = ""
    """Name of the job; jobs that share a Redis need different names. Empty makes one of the
    script's name and random digits; on several machines they follow from the addresses."""

    checkpoint_dirs: str = ""
    """Folders below which pservers save and load checkpoints, with ':' between (os.pathsep);
    empty is the working folder, and the coordinator's checkpoint_dir if that is set."""

    resume: str = ""
    """Folder of checkpoints: the job continues from its newest whole one, and starts anew while
    it has none. Every machine must see the folder."""

    nproc_per_node: int | None = None
    """Collective mode: workers on each machine; empty is one for each of --gpus."""

    gpus: str = ""
    """The GPUs of this machine to use, one a worker, with commas between. With pservers beside,
    as in gpubox mode, each worker sees its own alone; without, it is collective mode."""

    data_dir: str = ""
    """Folder below which each pserver keeps its training: one that dies is started again and
    continues. Empty keeps it in memory alone."""

    durability: Literal["async", "sync"] = "async"
    """With data_dir: whether a change is acknowledged before it is on the disk (async), or only
    then (sync)."""

    chaos: bool = False
    """Whether `paramfleet chaos` may hurt the job's processes, for a trial of its recovery."""

    max_restarts: int | None = None
    """How often in a row a worker that dies is started again; it goes on where it was, with
    what its script has registered. With data_dir also a pserver, the coordinator and the job's
    own Redis; empty is 3 for those, and 0 for workers. Collective mode: how often all workers
    are started again when one of them has failed; empty is 0, and the script goes on from its
    newest checkpoint (``fleet.newest_checkpoint``)."""

    rerun_script: bool = False
    """Whether a pserver that is started again runs the script once more, for what the script
    does beside `fleet.run_server()`. Without, its server alone is started, with what the script
    gave it: that saves the imports of the script, torch among them."""

    share_imports: bool = True
    """On Linux, with pservers: whether the processes that run the script are forks of one that
    has imported torch and paramfleet, and start sooner so. Without, as where the script's
    folder has a module of a name that those import, or the script sets a variable that
    libraries read, each is a new interpreter."""

    ips: str = ""
    """Collective mode on several machines: their addresses, with commas between; the first
    hosts the rendezvous."""

    master_port: int = 29500
    """Collective mode on several machines: port of the rendezvous address on the first."""

    verbose: bool = False
    """Show all that the processes log, joins and settings too: the terminal has what scripts
    print, warnings and the job's progress, and the log folder has the rest."""

    quiet: bool = False
    """Show only what scripts print, and what goes wrong."""

    open: bool = False
    """Open the job's page in a browser, once its coordinator serves it."""

    host_ip: str = ""
    """Several machines: the one address of the lists that is this machine; empty takes
    POD_IP, else whatever addresses this machine's interfaces have."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        check_texts(self)
        if self.quiet and self.verbose:
            rule = "left out with --verbose, which shows all"
            raise SettingError(name="quiet", value=self.quiet, rule=rule)
        self._check_servers()
        self.job_settings(self.redis if "://" in self.redis else "")  # its name is a file's
        if self.durability != "async" and not self.data_dir:
            rule = "left out without --data-dir"
            raise SettingError(name="durability", value=self.durability, rule=rule)
        if self.collective:
            self._check_collective()
            return
        self._check_gpus()
        self._check_data_dir()
        given = {n: getattr(self, n) for n in ("servers", "workers", "coordinator", "redis")}
        several = any(given[name] for name in ("servers", "workers", "coordinator"))
        if self.on == "ray" and several:
            named = next(name for name, value in given.items() if value)
            rule = "left out with --on ray, where Ray says who runs on which machine"
            raise SettingError(name=named, value=given[named], rule=rule)
        for name, value in given.items():
            if several and not value:
                rule = "given, as --servers, --workers, --coordinator and --redis go together"
                raise SettingError(name=name, value=value, rule=rule)

    @property
    def collective(self) -> bool:
        """Tell whether the job has no servers: torch's agent starts its workers."""
        served = bool(self.server_num or self.servers)
        return bool(self.ips or self.nproc_per_node or (self.gpus and not served))

    @property
    def restarts(self) -> int:
        """Return how often what died is started again."""
        if self.max_restarts is None:
            return _RESTARTS_WITH_DATA if self.data_dir or self.replicas else 0
        return self.max_restarts

    @property
    def restarted(self) -> frozenset[str]:
        """Return the roles whose processes are started again."""
        survives = self.data_dir or self.replicas
        served = {"pserver", "coordinator", "redis"} if survives else set()
        returning = self.max_restarts and not self.elastic and self.on != "ray"
        return frozenset(served | ({"worker"} if returning else set()))

    @property
    def process_num(self) -> int | None:
        """Return how many processes for pservers start; None if it isn't said."""
        return None if self.server_num is None else self._server_nums[0]

    @property
    def group_num(self) -> int | None:
        """Return how many pservers' groups the job has; None if it isn't said."""
        return None if self.server_num is None else self._server_nums[1]

    @property
    def is_planned(self) -> bool:
        """Tell whether the coordinator plans which process hosts which group."""
        return bool(self.replicas) or ":" in str(self.server_num)

    @property
    def _server_nums(self) -> tuple[int, int]:
        """Return processes and groups.

        Raises:
            SettingError: if they can't be read, or there are fewer groups than processes.
        """
        first, is_range, last = str(self.server_num).partition(":")
        numbers = [first, last if is_range else first]
        plain = all(each.isascii() and each.isdecimal() and len(each) < 10 for each in numbers)
        if not plain:
            rule = "a whole number from 1 to 65536, or MIN:MAX"
            raise SettingError(name="server_num", value=self.server_num, rule=rule)
        least, most = (int(each) for each in numbers)
        if not 1 <= least <= most <= _MOST_SERVERS:
            rule = f"a whole number from 1 to {_MOST_SERVERS}"
            rule += ", or MIN:MAX, of which MIN is the smaller one" if is_range else ""
            value = self.server_num if is_range else least
            raise SettingError(name="server_num", value=value, rule=rule)
        return least, most

    @property
    def gpus_of_workers(self) -> tuple[str, ...]:
        """Return the numbers of the GPUs, one for each worker of this machine.

        Raises:
            SettingError: if they aren't numbers, each once.
        """
        gpus = [gpu.strip() for gpu in self.gpus.split(",")] if self.gpus else []
        if not all(gpu.isdigit() for gpu in gpus) or len(set(gpus)) != len(gpus):
            rule = "numbers of GPUs, each once, with commas between"
            raise SettingError(name="gpus", value=self.gpus, rule=rule)
        return tuple(gpus)

    def job_settings(self, redis: str) -> JobSettings:
        """Return what the job's processes have of these.

        Args:
            redis: Where the registry is; empty takes the usual place.

        Raises:
            SettingError: if the job's name, or the address, can't be one.
        """
        shared: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(SecuritySettings)
        }
        return JobSettings(job=self.job or "default", redis=redis or _USUAL_REDIS, **shared)

    @property
    def several_machines(self) -> bool:
        """Tell whether the options name the machines of the job."""
        return bool(self.servers)

    def _check_data_dir(self) -> None:
        """Refuse what needs a data folder without one, and a data folder on Ray.

        Raises:
            SettingError: naming the option.
        """
        if self.data_dir and self.on == "ray":
            rule = "left out with --on ray, where a process has no disk of its own"
            raise SettingError(name="data_dir", value=self.data_dir, rule=rule)
        if self.data_dir or self.replicas:
            return
        if self.max_restarts and not self.restarted:
            rule = (
                "left out with --elastic or on Ray without --data-dir: there nothing is "
                "started again; a worker of an elastic job may join anew"
            )
            raise SettingError(name="max_restarts", value=self.max_restarts, rule=rule)

    def _check_servers(self) -> None:
        """Refuse numbers of pservers that can't be, and what has no pservers to follow.

        Raises:
            SettingError: naming the option.
        """
        processes = self.process_num
        if self.is_planned and self.on == "ray":
            name = "replicas" if self.replicas else "server_num"
            rule = "one number, with --on ray, where processes don't come and go"
            raise SettingError(name=name, value=getattr(self, name), rule=rule)
        known = processes or (1 if not self.servers else len(self.servers.split(",")))
        if self.replicas and known < self.replicas + 1:
            rule = "0, or with --server_num of at least 2: a copy is in another process"
            raise SettingError(name="replicas", value=self.replicas, rule=rule)

    def _check_gpus(self) -> None:
        """Refuse GPUs that aren't one for each worker.

        Raises:
            SettingError: naming them.
        """
        gpus = self.gpus_of_workers
        if not gpus:
            return
        if self.on == "ray":
            rule = "left out with --on ray, where --ray_gpus says how many a worker has"
            raise SettingError(name="gpus", value=self.gpus, rule=rule)
        if not self.workers and self.worker_num not in {None, len(gpus)}:
            rule = f"left out, or {len(gpus)}, with --gpus {self.gpus}: a worker has one GPU"
            raise SettingError(name="worker_num", value=self.worker_num, rule=rule)

    def _check_collective(self) -> None:
        """Refuse what the other kind of job has.

        Raises:
            SettingError: naming both options.
        """
        own = next(n for n in ("gpus", "nproc_per_node", "ips") if getattr(self, n))
        if self.on == "ray":
            rule = f"left out with --{own}: a collective job runs on machines that are named"
            raise SettingError(name="on", value=self.on, rule=rule)
        for name in (
            "server_num", "worker_num", "elastic", "servers", "workers", "coordinator", "redis",
            "checkpoint_dirs", "resume", "data_dir", "replicas", "open",
        ):  # fmt: skip
            value = getattr(self, name)
            if value:
                rule = f"left out with --{own}: a collective job has workers and nothing else"
                raise SettingError(name=name, value=value, rule=rule)
        gpus = self.gpus_of_workers
        if gpus and self.nproc_per_node not in {None, len(gpus)}:
            rule = f"left out, or {len(gpus)}, with --gpus {self.gpus}: a worker has one GPU"
            raise SettingError(name="nproc_per_node", value=self.nproc_per_node, rule=rule)
