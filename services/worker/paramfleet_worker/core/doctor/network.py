"""Checks of addresses, ports and names."""

from collections import Counter
from collections.abc import Iterator

from paramfleet_worker.core.doctor.facts import Facts
from paramfleet_worker.core.doctor.findings import Finding, failure

__all__ = ["check_hosts", "check_ports"]


def check_ports(facts: Facts) -> Iterator[Finding]:
    """Check that what is to be listened on can be."""
    counts = Counter((port.host, port.port) for port in facts.ports if port.port)
    for port in facts.ports:
        where = f"{port.host} port {port.port}"
        if not port.is_ours:
            yield failure(
                "address-not-ours",
                where,
                "no interface of this machine has this address",
                "listen on one it has (bind), and name this one as host or advertise",
            )
        elif not port.is_free:
            by = f" by {port.listener}" if port.listener else ""
            yield failure(
                "port-taken",
                where,
                f"it is listened on already{by}",
                "stop that process, or choose another port; 0 takes a free one",
            )
    for (host, number), count in counts.items():
        if count > 1:
            yield failure(
                "port-twice",
                f"{host} port {number}",
                f"{count} addresses of this process are the same",
                "give each its own port; 0 takes a free one",
            )


def check_hosts(facts: Facts) -> Iterator[Finding]:
    """Check that names mean addresses that others reach."""
    redis = facts.redis
    is_alone = redis is None or redis.is_loopback
    for host in facts.hosts:
        where = f"{host.setting} = {host.host}"
        if not host.addresses:
            yield failure(
                "host-unresolvable",
                where,
                "this name has no address here",
                "correct it, or add it to DNS or /etc/hosts",
            )
        elif host.setting == "host" and host.all_loopback and not is_alone:
            yield failure(
                "host-loopback",
                where,
                f"Redis is on another machine, but this process names itself "
                f"{host.addresses[0]}, which others take for themselves",
                "set PARAMFLEET_HOST to an address of this machine that others reach",
            )
