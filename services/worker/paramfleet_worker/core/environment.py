"""The environment a launched process finds: the names that Fleet users know, and ours."""

from collections.abc import Mapping
from dataclasses import dataclass

from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.topology import Topology

__all__ = ["JobFacts", "role_environment", "runtime_environment"]

MALLOC_MMAP_THRESHOLD_BYTES = 32 << 20
"""The most that glibc takes. Message-sized blocks then come from the heap, which keeps
its pages, instead of from mmap, which faults each of them in again."""

MALLOC_TRIM_THRESHOLD_BYTES = 512 << 20

TRAINING_ROLES = {"worker": "TRAINER", "pserver": "PSERVER", "coordinator": "COORDINATOR"}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """What every process of a job must know."""

    job: str
    redis: str
    """URL of the registry; empty until it has a place."""
    topology: Topology
    log_dir: str
    """Absolute path of the folder of the logs."""
    launch: str = ""
    """Name of this launch."""


def role_environment(name: ProcessName, facts: JobFacts) -> dict[str, str]:
    """Return the variables that give a process its role and index in the job."""
    topology = facts.topology
    endpoint = topology.endpoint_of(name)
    environment = {
        "TRAINING_ROLE": TRAINING_ROLES[name.role],
        "PADDLE_TRAINERS_NUM": str(len(topology.workers)),
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(e.text for e in topology.servers),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(e.text for e in topology.workers),
        "POD_IP": endpoint.host,
        "PADDLE_PORT": str(endpoint.port),
        "PARAMFLEET_JOB": facts.job,
        "PARAMFLEET_LAUNCH": facts.launch,
        "PARAMFLEET_REDIS": facts.redis,
        "PARAMFLEET_COORDINATOR": topology.coordinator.text,
        "PARAMFLEET_HOST": endpoint.host,
        "PARAMFLEET_LOG_DIR": facts.log_dir,
    }
    if name.role == "worker":
        environment["PADDLE_TRAINER_ID"] = str(name.index)
    return environment


def runtime_environment(
    inherited: Mapping[str, str], *, num_cores: int, num_local_roles: int
) -> dict[str, str]:
    """Return settings of the runtime that make many processes share one machine well.

    Args:
        inherited: What the user already set; it is never overruled.
        num_cores: Cores this launcher may use.
        num_local_roles: Workers and pservers that share them; 0 counts as 1. A pserver
            busy with one worker's push must not wait for another's matrices.
    """
    wanted = {
        "MALLOC_MMAP_THRESHOLD_": str(MALLOC_MMAP_THRESHOLD_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(MALLOC_TRIM_THRESHOLD_BYTES),
        "OMP_NUM_THREADS": str(max(1, num_cores // max(1, num_local_roles))),
        "PYTHONUNBUFFERED": "1",  # a killed process must not take its last lines along
    }
    return {name: value for name, value in wanted.items() if name not in inherited}
