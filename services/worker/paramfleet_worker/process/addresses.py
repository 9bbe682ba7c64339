"""Which hosts are this machine, and whether something listens there."""

import socket
from collections.abc import Iterable

from paramfleet_worker.core.topology import Endpoint, Host

__all__ = ["hosts_of_this_machine", "is_listening"]

CONNECT_TIMEOUT_S = 2.0


def hosts_of_this_machine(hosts: Iterable[Host], *, own: Host | None) -> frozenset[Host]:
    """Return those of ``hosts`` that are this machine.

    Args:
        hosts: Names or addresses, as written on the command line.
        own: The one host that this machine is (``--host_ip``, ``POD_IP``). None: every
            host whose address one of this machine's interfaces has.
    """
    if own is None:
        return frozenset(host for host in hosts if any(map(_is_ours, _addresses(host))))
    mine = {own, *_addresses(own)}
    return frozenset(host for host in hosts if not mine.isdisjoint({host, *_addresses(host)}))


def is_listening(endpoint: Endpoint) -> bool:
    """Tell whether something accepts connections there."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _addresses(host: Host) -> set[str]:
    """Return the addresses of a host; none if its name can't be resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(address[0]) for *_, address in found}


def _is_ours(address: str) -> bool:
    """Tell whether an interface has the address: only then can a socket bind it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
