"""Who this process is in the job, and where the others are.

The names and environment variables are those that Fleet users know. A role
maker only reads; it opens no connection.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.settings.config import read_environment

__all__ = [
    "PaddleCloudRoleMaker",
    "Rendezvous",
    "Role",
    "RoleError",
    "RoleMaker",
    "UserDefinedRoleMaker",
]


class Role(enum.IntEnum):
    """What a process does; the values are Fleet's."""

    WORKER = 1
    SERVER = 2


class RoleError(ContractError):
    """The role environment or a role maker's argument is missing or wrong."""

    code = "contract.role"
    name: str
    value: str | None
    rule: str

    @override
    def describe(self) -> str:
        have = "is not set" if self.value is None else f"= {self.value!r}"
        return f"{self.name} {have}: {self.rule}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """Collective mode: where the workers find each other."""

    host: str
    """Address of the store that all can read."""

    port: int
    """Its port."""

    keeps_store: bool
    """Whether the store is in this process; else in worker 0, or in torchrun's agent."""

    local_index: int = 0
    """Position among the workers of this machine: the number of its GPU."""

    attempt: str = "0"
    """Which start of the workers this is, where torchrun starts them again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleMaker:
    """A resolved role. ``PaddleCloudRoleMaker`` and ``UserDefinedRoleMaker`` make one."""

    distributed: bool
    """False when there is no job: the script trains in this one process."""

    role: Role = Role.WORKER
    """Worker or server."""

    index: int | None = 0
    """Position among the processes of this role; None lets the coordinator choose."""

    worker_num: int = 1
    """Workers of the job; 0 when only the coordinator knows."""

    worker_endpoints: tuple[str, ...] = ()
    """``host:port`` or ``host`` of each worker, where known."""

    server_endpoints: tuple[str, ...] = ()
    """``host:port`` of each pserver, where known before they register."""

    host: str | None = None
    """The address this process advertises; None leaves it to ``PARAMFLEET_HOST``."""

    port: int = 0
    """The port a server listens on; 0 picks a free one."""

    collective: bool = False
    """Whether the workers train in collective mode, without servers."""

    rendezvous: Rendezvous | None = None
    """Collective mode with more than one worker: where they find each other."""


def PaddleCloudRoleMaker(  # noqa: N802 - the name Fleet users call
    is_collective: bool = False,  # noqa: FBT001, FBT002 - Fleet's signature
    *,
    environment: Mapping[str, str] | None = None,
) -> RoleMaker:
    """Read the role from the environment that ``paramfleet launch`` sets.

    Without ``TRAINING_ROLE`` the script is not distributed. Servers need
    ``POD_IP`` and ``PADDLE_PORT``; workers need ``PADDLE_TRAINERS_NUM``, and
    ``PADDLE_TRAINER_ID`` unless the coordinator is to choose the rank.

    Args:
        is_collective: Collective mode: read what torchrun and ``paramfleet launch --gpus``
            set; without it this process is the only worker.
        environment: Read instead of the process's own environment.

    Raises:
        RoleError: naming the variable that is missing or wrong.
    """
    env = read_environment() if environment is None else environment
    if is_collective:
        return _collective_role(env)
    training_role = env.get("TRAINING_ROLE")
    if training_role is None:
        if "RANK" in env and env.get("WORLD_SIZE", "1") != "1":
            rule = "torchrun started several workers, and each would train separately: call "
            rule += "fleet.init(is_collective=True)"
            raise RoleError(name="WORLD_SIZE", value=env["WORLD_SIZE"], rule=rule)
        return RoleMaker(distributed=False)
    servers = _split(env.get("PADDLE_PSERVERS_IP_PORT_LIST", ""))
    workers = _split(env.get("PADDLE_TRAINER_ENDPOINTS", ""))
    host = env.get("POD_IP")
    worker_num = _integer(env, "PADDLE_TRAINERS_NUM", default=0, least=0)
    if training_role == "TRAINER":
        raw_index = env.get("PADDLE_TRAINER_ID")
        index = (
            None
            if raw_index is None
            else _integer(env, "PADDLE_TRAINER_ID", default=0, least=0)
        )
        if index is not None and worker_num and index >= worker_num:
            rule = f"must be below PADDLE_TRAINERS_NUM = {worker_num}"
            raise RoleError(name="PADDLE_TRAINER_ID", value=raw_index, rule=rule)
        return RoleMaker(
            distributed=True,
            role=Role.WORKER,
            index=index,
            worker_num=worker_num,
            worker_endpoints=workers,
            server_endpoints=servers,
            host=host,
        )
    if training_role == "PSERVER":
        return _server_role(env, servers, workers)
    rule = "must be TRAINER or PSERVER"
    raise RoleError(name="TRAINING_ROLE", value=training_role, rule=rule)


def UserDefinedRoleMaker(  # noqa: N802 - the name Fleet users call
    is_collective: bool = False,  # noqa: FBT001, FBT002 - Fleet's signature
    *,
    current_id: int = 0,
    role: Role = Role.WORKER,
    worker_num: int | None = None,
    worker_endpoints: Sequence[str] = (),
    server_endpoints: Sequence[str] = (),
) -> RoleMaker:
    """State the role in code instead of the environment.

    Args:
        is_collective: Collective mode; worker 0 hosts the store of the rendezvous, at its
            ``host:port`` of ``worker_endpoints``.
        current_id: Index of this process among those of its role.
        role: ``Role.WORKER`` or ``Role.SERVER``.
        worker_num: Workers of the job; the length of ``worker_endpoints`` if not given.
        worker_endpoints: ``host:port`` of each worker.
        server_endpoints: ``host:port`` of each pserver.

    Raises:
        RoleError: if the counts and the index don't fit each other.
    """
    count = len(worker_endpoints) if worker_num is None else worker_num
    if worker_endpoints and count != len(worker_endpoints):
        rule = f"must equal the {len(worker_endpoints)} worker_endpoints"
        raise RoleError(name="worker_num", value=str(count), rule=rule)
    if count < 1:
        raise RoleError(name="worker_num", value=str(count), rule="must be at least 1")
    if is_collective:
        return _stated_collective_role(
            current_id, role, count, tuple(worker_endpoints), tuple(server_endpoints)
        )
    if not server_endpoints:
        raise RoleError(name="server_endpoints", value=None, rule="name at least one pserver")
    limit = count if role is Role.WORKER else len(server_endpoints)
    if not 0 <= current_id < limit:
        rule = f"must be from 0 to {limit - 1} for a {role.name.lower()}"
        raise RoleError(name="current_id", value=str(current_id), rule=rule)
    own = server_endpoints[current_id] if role is Role.SERVER else "127.0.0.1:0"
    host, _, port = own.rpartition(":")
    if not port.isdigit():
        raise RoleError(name="server_endpoints", value=own, rule="must be host:port")
    return RoleMaker(
        distributed=True,
        role=role,
        index=current_id,
        worker_num=count,
        worker_endpoints=tuple(worker_endpoints),
        server_endpoints=tuple(server_endpoints),
        host=host,
        port=int(port),
    )


def _server_role(
    env: Mapping[str, str], servers: tuple[str, ...], workers: tuple[str, ...]
) -> RoleMaker:
    host = env.get("POD_IP")
    port = _integer(env, "PADDLE_PORT", default=0, least=0)
    return RoleMaker(
        distributed=True,
        role=Role.SERVER,
        index=_server_index(servers, join_endpoint(host or "127.0.0.1", port)),
        worker_num=_integer(env, "PADDLE_TRAINERS_NUM", default=0, least=0),
        worker_endpoints=workers,
        server_endpoints=servers,
        host=host,
        port=port,
    )


def _collective_role(env: Mapping[str, str]) -> RoleMaker:
    """Read what torchrun sets.

    Raises:
        RoleError: naming the variable that is missing or wrong.
    """
    if "TRAINING_ROLE" in env:
        rule = "a job with servers started this process, and is_collective=True has none: "
        rule += "start it with paramfleet launch --nproc_per_node, or torchrun"
        raise RoleError(name="TRAINING_ROLE", value=env["TRAINING_ROLE"], rule=rule)
    if "WORLD_SIZE" not in env and "RANK" not in env:
        return RoleMaker(distributed=False, collective=True)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if name not in env:
            raise RoleError(name=name, value=None, rule="torchrun sets it for every worker")
    size = _integer(env, "WORLD_SIZE", default=1, least=1)
    rank = _integer(env, "RANK", default=0, least=0)
    if rank >= size:
        rule = f"must be below WORLD_SIZE = {size}"
        raise RoleError(name="RANK", value=env["RANK"], rule=rule)
    agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return RoleMaker(
        distributed=True,
        collective=True,
        index=rank,
        worker_num=size,
        worker_endpoints=_split(env.get("PADDLE_TRAINER_ENDPOINTS", "")),
        host=env.get("POD_IP"),
        rendezvous=Rendezvous(
            host=env["MASTER_ADDR"],
            port=_integer(env, "MASTER_PORT", default=0, least=1),
            keeps_store=rank == 0 and not agent,
            local_index=_integer(env, "LOCAL_RANK", default=0, least=0),
            attempt=env.get("TORCHELASTIC_RESTART_COUNT", "0"),
        ),
    )


def _stated_collective_role(
    current_id: int, role: Role, count: int, workers: tuple[str, ...], servers: tuple[str, ...]
) -> RoleMaker:
    """Return a collective worker's role.

    Raises:
        RoleError: if the addresses and the index don't fit each other.
    """
    if servers or role is Role.SERVER:
        rule = "is_collective=True has no servers"
        name = "server_endpoints" if servers else "role"
        raise RoleError(name=name, value=",".join(servers) or role.name, rule=rule)
    if not 0 <= current_id < count:
        rule = f"must be from 0 to {count - 1} for a worker"
        raise RoleError(name="current_id", value=str(current_id), rule=rule)
    if count == 1:
        return RoleMaker(distributed=False, collective=True, worker_endpoints=workers)
    host, _, port = workers[0].rpartition(":") if workers else ("", "", "")
    if not host or not port.isdigit():
        value = workers[0] if workers else None
        rule = "must begin with host:port of worker 0"
        raise RoleError(name="worker_endpoints", value=value, rule=rule)
    hosts = [endpoint.rpartition(":")[0] for endpoint in workers]
    return RoleMaker(
        distributed=True,
        collective=True,
        index=current_id,
        worker_num=count,
        worker_endpoints=workers,
        rendezvous=Rendezvous(
            host=host,
            port=int(port),
            keeps_store=current_id == 0,
            local_index=hosts[:current_id].count(hosts[current_id]),
        ),
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _integer(env: Mapping[str, str], name: str, *, default: int, least: int) -> int:
    raw = env.get(name)
    if raw is None:
        return default
    if not raw.isdigit() or int(raw) < least:
        raise RoleError(name=name, value=raw, rule=f"must be a whole number, at least {least}")
    return int(raw)


def _server_index(servers: tuple[str, ...], own: str) -> int | None:
    if not servers:
        return None
    if own not in servers:
        rule = f"must hold this server's own POD_IP:PADDLE_PORT = {own}"
        raise RoleError(name="PADDLE_PSERVERS_IP_PORT_LIST", value=",".join(servers), rule=rule)
    return servers.index(own)
