"""Which hosts are this machine, and ports that nobody else gets."""

import asyncio
import socket
import sys

import pytest

from paramfleet_worker.core.topology import Endpoint, Host
from paramfleet_worker.process.addresses import hosts_of_this_machine, is_listening
from paramfleet_worker.process.ports import PortReservations

LOOPBACK = Host("127.0.0.1")
ELSEWHERE = Host("192.0.2.7")  # RFC 5737: for documentation, nobody has it
UNKNOWN = Host("no-such-host.invalid")


def test_this_machine_has_the_addresses_of_its_interfaces() -> None:
    hosts = {LOOPBACK, Host("localhost"), ELSEWHERE, UNKNOWN}

    assert hosts_of_this_machine(hosts, own=None) == {LOOPBACK, "localhost"}


def test_a_given_address_decides_alone() -> None:
    hosts = {LOOPBACK, Host("127.0.0.2"), ELSEWHERE}

    assert hosts_of_this_machine(hosts, own=Host("127.0.0.2")) == {"127.0.0.2"}
    assert hosts_of_this_machine(hosts, own=ELSEWHERE) == {ELSEWHERE}
    assert hosts_of_this_machine({Host("localhost")}, own=LOOPBACK) == {"localhost"}
    assert hosts_of_this_machine({UNKNOWN}, own=UNKNOWN) == {UNKNOWN}


def test_a_reserved_port_is_free_for_its_server_and_for_nobody_else() -> None:
    async def serve(endpoint: Endpoint) -> bool:
        server = await asyncio.start_server(
            lambda _, w: w.close(), endpoint.host, endpoint.port
        )
        async with server:
            return is_listening(endpoint)

    with PortReservations() as reservations:
        endpoint = reservations.reserve(LOOPBACK)

        assert not is_listening(endpoint)
        if sys.platform == "linux":
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((endpoint.host, endpoint.port))
        assert asyncio.run(serve(endpoint))


def test_reservations_differ_and_end_with_their_owner() -> None:
    with PortReservations() as reservations:
        ports = {reservations.reserve(LOOPBACK).port for _ in range(50)}
    assert len(ports) == 50

    with socket.socket() as other:
        other.bind((LOOPBACK, ports.pop()))
