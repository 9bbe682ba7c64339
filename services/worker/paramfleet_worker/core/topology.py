"""Who runs where: the processes of a job, and those this machine must start.

Every machine is given the same command and works out its own part. Which hosts
*are* this machine is the caller's knowledge; nothing here looks at a network.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import NewType
from urllib.parse import unquote, urlsplit

from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_worker.core.events import ProcessName

__all__ = [
    "FIRST_WORKER_PORT",
    "Endpoint",
    "Host",
    "RedisAddress",
    "Topology",
    "TopologyError",
    "parse_endpoint",
    "parse_endpoints",
    "parse_redis",
    "roles_of",
]

FIRST_WORKER_PORT = 6170
"""Port of a host's first worker where ``--workers`` names none; the next one has one more."""

DEFAULT_REDIS_PORT = 6379

_WILDCARDS = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 -- refused, not bound

Host = NewType("Host", str)
"""A name or an address, as it was written on the command line."""


class TopologyError(ContractError):
    """The options don't describe a job."""

    code = "contract.topology"
    option: str
    value: str
    rule: str
    sentence = "{option}={value!r}: {rule}"


@dataclass(frozen=True, order=True, slots=True)
class Endpoint:
    """Where a process listens."""

    host: Host
    port: int

    @property
    def text(self) -> str:
        """Return ``host:port``, with brackets around an IPv6 address."""
        return join_endpoint(self.host, self.port)


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisAddress:
    """The parts of a Redis URL that starting a server needs."""

    host: Host
    port: int
    password: str
    """Empty: no password."""
    socket: str = ""
    """Path of the Unix socket it listens on instead; empty: none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Every endpoint of a job, the same on each machine.

    Raises:
        TopologyError: if two processes share an endpoint, or there is no worker or server.
    """

    servers: tuple[Endpoint, ...]
    workers: tuple[Endpoint, ...]
    coordinator: Endpoint

    def __post_init__(self) -> None:
        for option, endpoints in (("--servers", self.servers), ("--workers", self.workers)):
            if not endpoints:
                raise TopologyError(option=option, value="", rule="name at least one")
        counts = Counter((*self.servers, *self.workers, self.coordinator))
        endpoint, times = counts.most_common(1)[0]
        if times > 1:
            rule = f"{endpoint.text} is given to {times} processes"
            raise TopologyError(option="--servers/--workers", value=endpoint.text, rule=rule)

    @property
    def hosts(self) -> frozenset[Host]:
        """Return every host that has a part in the job."""
        every = (*self.servers, *self.workers, self.coordinator)
        return frozenset(endpoint.host for endpoint in every)

    def endpoint_of(self, name: ProcessName) -> Endpoint:
        """Return where a coordinator, pserver or worker of this job listens."""
        match name.role:
            case "coordinator":
                return self.coordinator
            case "pserver":
                return self.servers[name.index]
            case _:
                return self.workers[name.index]


def roles_of(topology: Topology, mine: Collection[Host]) -> tuple[ProcessName, ...]:
    """Return the coordinator, pservers and workers that the machine ``mine`` must start.

    Args:
        topology: The whole job.
        mine: Those of its hosts that are this machine.
    """
    names = [ProcessName("coordinator", 0)] if topology.coordinator.host in mine else []
    for role, endpoints in (("pserver", topology.servers), ("worker", topology.workers)):
        for index, endpoint in enumerate(endpoints):
            if endpoint.host in mine:
                names.append(ProcessName(role, index))
    return tuple(names)


def parse_endpoint(text: str, *, option: str) -> Endpoint:
    """Read ``host:port``.

    Raises:
        TopologyError: if it is not one, or the host is a wildcard.
    """
    host, port = _split(text.strip(), option)
    if port is None:
        raise TopologyError(option=option, value=text, rule="the port is missing (host:port)")
    return Endpoint(host, port)


def parse_endpoints(text: str, *, option: str, first_port: int | None) -> tuple[Endpoint, ...]:
    """Read ``host:port,host:port``.

    Args:
        text: The value of the option.
        option: Its name, for errors.
        first_port: The port of the first entry of a host that has none, where a port may
            be left out; later ones of the same host count up from it. None: it may not.

    Raises:
        TopologyError: if an entry can't be read.
    """
    used: set[Endpoint] = set()
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise TopologyError(option=option, value=text, rule="an entry between commas is empty")
    split = [_split(part, option) for part in parts]
    used.update(Endpoint(host, port) for host, port in split if port is not None)
    endpoints = []
    for part, (host, port) in zip(parts, split, strict=True):
        if port is None and first_port is None:
            raise TopologyError(option=option, value=part, rule="the port is missing")
        endpoints.append(_place(host, port, first_port or 0, used))
    return tuple(endpoints)


def parse_redis(url: str) -> RedisAddress | None:
    """Read what a launcher must know of ``redis://[:password@]host[:port][/db]``.

    Returns:
        None for a Redis that a launcher can join but not start: TLS, or a unix socket.

    Raises:
        TopologyError: if it is not an address of a Redis.
    """
    rule = "must look like redis://[:password@]host:port/0"
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_REDIS_PORT
    except ValueError as exc:
        raise TopologyError(option="--redis", value=_hide(url), rule=rule) from exc
    if parts.scheme in {"rediss", "unix"}:
        return None
    if parts.scheme != "redis" or not parts.hostname:
        raise TopologyError(option="--redis", value=_hide(url), rule=rule)
    return RedisAddress(
        host=Host(parts.hostname), port=port, password=unquote(parts.password or "")
    )


def _hide(url: str) -> str:
    """Leave out what may be a password."""
    scheme, _, rest = url.rpartition("://")
    return f"{scheme}://...@{rest.rpartition('@')[2]}" if "@" in rest else url


def _place(host: Host, port: int | None, first: int, used: set[Endpoint]) -> Endpoint:
    if port is not None:
        return Endpoint(host, port)
    while Endpoint(host, first) in used:
        first += 1
    used.add(Endpoint(host, first))
    return Endpoint(host, first)


def _split(part: str, option: str) -> tuple[Host, int | None]:
    """Return host and port; the port is None where none is written.

    Raises:
        TopologyError: if it is not ``host`` or ``host:port``.
    """
    host, colon, port = part.rpartition(":")
    if part.startswith("[") and part.endswith("]"):
        host, colon, port = part, "", ""
    elif not colon:
        host, port = part, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or (":" in host and not part.startswith("[")):
        raise TopologyError(option=option, value=part, rule="must look like host:port")
    if host in _WILDCARDS:
        rule = "name an address that the other machines can reach, not a wildcard"
        raise TopologyError(option=option, value=part, rule=rule)
    if not colon:
        return Host(host), None
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise TopologyError(option=option, value=part, rule="the port must be 1 to 65535")
    return Host(host), int(port)
