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
    """Number of pservers (parameter servers) to start; by default 1, or as many as --servers
    lists. MIN:MAX starts MIN pservers in a job that `paramfleet scale` can change to any number
    up to MAX."""

    replicas: int = 0
    """Copies of each pserver's data on other pservers, 0 or 1. With 1, another pserver takes
    over when a pserver dies."""

    worker_num: int | None = None
    """Number of workers to start; by default 1, or as many as --workers lists."""

    elastic: bool = False
    """In async and GEO: continue when a worker dies, and let workers join and leave. In gpubox
    with one worker: let another process replace it. With max_restarts the launcher restarts a
    worker that dies, and the new process joins the job as a late worker does."""

    on: Literal["here", "ray"] = "here"
    """Where the processes run: `here`, on this machine and those of --servers and --workers, or
    `ray`, as actors of a Ray cluster."""

    ray_cpus: float = 1.0
    """With --on ray: CPUs that each worker and each pserver requests."""

    ray_gpus: float = 0.0
    """With --on ray: GPUs that each worker requests."""

    log_dir: Path = Path("log")
    """Folder of the log files: one for each process, as serverlog.0 and workerlog.1, and
    launcherlog.0."""

    servers: str = ""
    """ip:port of every pserver of the job, separated by commas."""

    workers: str = ""
    """ip, or ip:port, of every worker of the job, separated by commas."""

    coordinator: str = ""
    """ip:port of the coordinator."""

    redis: str = ""
    """Address of a Redis, where the processes of the job find each other. By default the
    launcher starts one for this job, without a port. It also starts one where the address is
    this machine's and nothing listens there."""

    job: str = ""
    """Name of the job; jobs that share a Redis need different names. By default it is made from
    the script's name and random digits, or on several machines from the addresses."""

    checkpoint_dirs: str = ""
    """Folders in which pservers may save and load checkpoints, separated by ':' (os.pathsep);
    by default the working folder, and the coordinator's checkpoint_dir if that is set."""

    resume: str = ""
    """Folder of checkpoints. The job continues from the newest complete one, or starts from the
    beginning if there is none. Every machine must have access to the folder. (A paused job
    continues by the command `paramfleet resume`.)"""

    nproc_per_node: int | None = None
    """Number of workers on each machine; by default one for each of --gpus."""

    gpus: str = ""
    """Numbers of this machine's GPUs, one for each worker, separated by commas. Together with
    --server_num (gpubox mode) each worker sees only its own GPU. Without pservers it starts a
    collective job."""

    data_dir: str = ""
    """Folder to which each pserver writes its data, so that it continues after a restart. By
    default the data is only in memory."""

    durability: Literal["async", "sync"] = "async"
    """With data_dir: whether a pserver acknowledges a change before it is on the disk (async),
    or after (sync)."""

    chaos: bool = False
    """Allow `paramfleet chaos` to kill, stop or slow down processes of this job, and
    PARAMFLEET_FAILPOINTS and PARAMFLEET_FAULTS to inject faults, to test how it recovers."""

    max_restarts: int | None = None
    """How often in a row a process that dies is restarted. A worker continues where it was,
    with the state that its script registered; in an elastic job it joins anew. The default for
    workers is 0. Pservers, the coordinator and the job's Redis are restarted with data_dir or
    replicas; the default for these is 3. In a collective job all workers are restarted when one
    fails; the default is 0, and the script continues from its newest checkpoint
    (``fleet.newest_checkpoint``)."""

    rerun_script: bool = False
    """Run the script again in a pserver that is restarted; needed if the script does more there
    than `fleet.run_server()`. By default only the server is restarted, with the arguments that
    the script passed, which saves importing torch."""

    share_imports: bool = True
    """On Linux, import torch and paramfleet once, and fork the processes of the job from that
    process, so that they start sooner. With --no-share_imports each process is a new Python
    interpreter with its own imports. This is also the case if a module in the script's folder
    has the same name as a module that torch or paramfleet imports, or if the script sets an
    environment variable that libraries read at import, such as OMP_NUM_THREADS."""

    ips: str = ""
    """Addresses of the machines, separated by commas. The first one hosts the rendezvous."""

    master_port: int = 29500
    """With --ips: port of the rendezvous on the first machine."""

    verbose: bool = False
    """Show everything that the processes log. By default the terminal shows what scripts print,
    warnings and the job's progress; the log folder has everything."""

    quiet: bool = False
    """Show only what scripts print, warnings and errors."""

    open: bool = False
    """Open the job's page in a browser when it is ready."""

    host_ip: str = ""
    """Which address in --servers, --workers and --coordinator is this machine. By default
    POD_IP, or the addresses of this machine's network interfaces."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        check_texts(self)
        if self.quiet and self.verbose:
            rule = "left out with --verbose, which shows all"
            raise SettingError(name="quiet", value=self.quiet, rule=rule)
        self._check_servers()
        self.job_settings(self.redis if "://" in self.redis else "")  # its name is a file's
        if self.durability != "async" and not self.data_dir:
            rule = "left out without --data_dir"
            raise SettingError(name="durability", value=self.durability, rule=rule)
        self._check_effects()
        if self.collective:
            self._check_collective()
            return
        self._check_gpus()
        self._check_data_dir()
        given = {n: getattr(self, n) for n in ("servers", "workers", "coordinator", "redis")}
        for name, number in (("servers", "server_num"), ("workers", "worker_num")):
            if given[name].isdecimal():
                rule = f"addresses; --{number} {given[name]} starts so many on this machine"
                raise SettingError(name=name, value=given[name], rule=rule)
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
        returning = self.max_restarts and self.on != "ray"
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
        """Refuse a data folder on Ray.

        Raises:
            SettingError: naming the option.
        """
        if self.data_dir and self.on == "ray":
            rule = "left out with --on ray, where a process has no disk of its own"
            raise SettingError(name="data_dir", value=self.data_dir, rule=rule)

    def _check_effects(self) -> None:
        """Refuse options that have no effect without another one.

        Raises:
            SettingError: naming the option, and the one that it needs.
        """
        ray = self.on == "ray"
        keeps_servers = "pserver" in self.restarted and self.restarts > 0
        named = bool(self.ips) or self.several_machines
        defaults = {each.name: each.default for each in fields(self)}
        servers = "left out without --data_dir or --replicas, and with --max_restarts 0"
        for name, has_effect, rule in (
            ("ray_cpus", ray, "left out without --on ray"),
            ("ray_gpus", ray, "left out without --on ray"),
            ("master_port", bool(self.ips), "left out without --ips"),
            ("host_ip", named, "left out without --servers or --ips, which name the machines"),
            (
                "max_restarts",
                not (ray and self.max_restarts),
                "left out with --on ray, where no process is restarted",
            ),
            ("rerun_script", keeps_servers, f"{servers}: no pserver is restarted"),
        ):
            value = getattr(self, name)
            if value != defaults[name] and not has_effect:
                raise SettingError(name=name, value=value, rule=rule)

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
            "checkpoint_dirs", "resume", "data_dir", "replicas", "open", "chaos", "job",
        ):  # fmt: skip
            value = getattr(self, name)
            if value:
                rule = f"left out with --{own}: a collective job has workers and nothing else"
                raise SettingError(name=name, value=value, rule=rule)
        gpus = self.gpus_of_workers
        if gpus and self.nproc_per_node not in {None, len(gpus)}:
            rule = f"left out, or {len(gpus)}, with --gpus {self.gpus}: a worker has one GPU"
            raise SettingError(name="nproc_per_node", value=self.nproc_per_node, rule=rule)
