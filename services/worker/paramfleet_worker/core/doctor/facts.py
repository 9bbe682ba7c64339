"""Facts about a machine and a job, in plain values; None where a fact is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

__all__ = [
    "CertificateFacts",
    "DiskFacts",
    "Facts",
    "HostFacts",
    "MachineFacts",
    "MemberFacts",
    "PortFacts",
    "RedisFacts",
    "SettingsFacts",
    "TokensFacts",
    "TorchFacts",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsFacts:
    """What the settings say; ``error`` where they can't be read."""

    error: str = ""
    job: str = "default"
    role: str = "worker"
    host: str = "127.0.0.1"
    redis: str = "redis://127.0.0.1:6379/0"
    """Without its password."""
    names_redis: bool = False
    """Whether somebody said where Redis is; else it is the default."""
    has_tls: bool = False
    has_tokens: bool = False
    variables: tuple[str, ...] = ()
    """Names of the environment that begin with PARAMFLEET_."""
    known: tuple[str, ...] = ()
    """Names that something reads."""
    fleet: Mapping[str, str] = field(default_factory=dict)
    """The role variables of Fleet that are set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisFacts:
    """What the registry answered."""

    is_reachable: bool = True
    refusal: str = ""
    """Why it refuses access; empty if it grants it."""
    reason: str = ""
    """Why it isn't reachable."""
    host: str = "127.0.0.1"
    is_loopback: bool = True
    asks_for_password: bool = True
    dangerous: tuple[str, ...] = ()
    """Commands that the job's user may run, and no job needs."""
    speaks_tls: bool = False
    version: str = "7.2.0"
    policy: str | None = "noeviction"
    max_bytes: int = 0
    """0 is no limit."""
    used_bytes: int = 0
    persists: bool | None = True
    denied: tuple[str, ...] = ()
    """Commands a role needs that the user may not run."""
    skew_s: float = 0.0
    """How far its clock is before ours."""
    round_trip_s: float = 0.001
    running_sizes: Mapping[str, int] | None = None
    """Sizes of the run that goes on."""
    coordinator: str = ""
    """Where the coordinator says it is."""
    coordinator_answers: bool = True
    coordinator_skew_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberFacts:
    """What a member of the job published."""

    name: str
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PortFacts:
    """An address that a process is to listen on."""

    host: str
    port: int
    is_ours: bool = True
    is_free: bool = True
    listener: str = ""
    """Which process has it, if that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """A host that a setting names."""

    setting: str
    host: str
    addresses: tuple[str, ...]
    all_loopback: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateFacts:
    """This process's certificate."""

    path: str
    missing: tuple[str, ...] = ()
    unreadable: str = ""
    readable_by_others: tuple[str, ...] = ()
    job: str = ""
    role: str = ""
    hosts: tuple[str, ...] = ()
    not_before: datetime | None = None
    not_after: datetime | None = None
    has_its_key: bool = True
    is_of_authority: bool = True
    authority_ends: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensFacts:
    """The file of tokens."""

    path: str
    error: str = ""
    roles: tuple[str, ...] = ()
    readable_by_others: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """The torch of this interpreter; found without importing it."""

    version: str = ""
    """Empty without one."""
    cuda: str = ""
    """The CUDA it was built for; empty for a CPU build."""
    error: str = ""
    """Why it can't be imported."""
    sees_device: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """What this machine and its limits allow."""

    python: str = "3.11.7"
    open_files: int = 65536
    memory_bytes: int = 16 << 30
    """What this process may use: the machine's, or its container's if that is less."""
    is_container_limit: bool = False
    memory_used_bytes: int = 0
    shm_bytes: int | None = 1 << 30
    kernels_folder: str = "kernels"
    """Empty if none can be written."""
    are_kernels_cold: bool = False
    has_device: bool = False
    """Whether there is an NVIDIA device."""
    driver: str = ""
    """The newest CUDA that its driver supports; empty if that is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskFacts:
    """The folder of checkpoints."""

    path: str
    exists: bool = True
    is_writable: bool = True
    free_bytes: int = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All of it, gathered at one moment."""

    now: datetime
    settings: SettingsFacts = field(default_factory=SettingsFacts)
    redis: RedisFacts | None = None
    members: tuple[MemberFacts, ...] = ()
    own_versions: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[PortFacts, ...] = ()
    hosts: tuple[HostFacts, ...] = ()
    certificate: CertificateFacts | None = None
    tokens: TokensFacts | None = None
    machine: MachineFacts = field(default_factory=MachineFacts)
    torch: TorchFacts | None = None
    disk: DiskFacts | None = None
    table_bytes: int = 0
    """What the tables are expected to take on this machine; 0 is unknown."""
