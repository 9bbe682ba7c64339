"""What this machine's names, addresses and ports are."""

import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

from paramfleet_worker.core.doctor.facts import HostFacts, PortFacts
from paramfleet_worker.process.probes.kernel_sockets import kernel_sockets

__all__ = ["addresses_of", "are_loopback", "look_at_host", "look_at_port"]


def addresses_of(host: str) -> tuple[str, ...]:
    """Return the addresses of a host; none if its name can't be resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def are_loopback(addresses: Sequence[str]) -> bool:
    """Return whether all of some addresses are this machine's own; no address is none."""
    plain = [address.partition("%")[0] for address in addresses]
    return bool(plain) and all(ipaddress.ip_address(each).is_loopback for each in plain)


def look_at_host(setting: str, host: str) -> HostFacts:
    """Return what a host's name means here."""
    addresses = addresses_of(host)
    return HostFacts(
        setting=setting, host=host, addresses=addresses, all_loopback=are_loopback(addresses)
    )


def look_at_port(host: str, port: int) -> PortFacts:
    """Return whether an address can be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, 0))
        except OSError:
            return PortFacts(host=host, port=port, is_ours=False)
    if not port:
        return PortFacts(host=host, port=port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return PortFacts(host=host, port=port, is_free=False, listener=_listener_on(port))
    return PortFacts(host=host, port=port)


def _listener_on(port: int) -> str:
    """Return which process listens on a port; empty if that is unknown."""
    inodes = {
        f"socket:[{each.inode}]"
        for each in kernel_sockets()
        if each.is_listening and each.local[1] == port
    }
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if inodes and str(descriptor.readlink()) in inodes:
                    name = (process / "comm").read_text().strip()
                    return f"{name} (process {process.name})"
    return ""
