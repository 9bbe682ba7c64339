"""Reading the addresses of a job, and each machine's part of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.topology import (
    Endpoint,
    Host,
    RedisAddress,
    Topology,
    TopologyError,
    parse_endpoint,
    parse_endpoints,
    parse_redis,
    roles_of,
)

H1, H2 = Host("10.0.0.1"), Host("10.0.0.2")


def servers(text: str) -> tuple[Endpoint, ...]:
    return parse_endpoints(text, option="--servers", first_port=None)


def workers(text: str) -> tuple[Endpoint, ...]:
    return parse_endpoints(text, option="--workers", first_port=6170)


TOPOLOGY = Topology(
    servers=servers("10.0.0.1:6000,10.0.0.2:6000"),
    workers=workers("10.0.0.1,10.0.0.2,10.0.0.2"),
    coordinator=Endpoint(H1, 7000),
)


def test_each_machine_finds_its_own_part() -> None:
    first = roles_of(TOPOLOGY, {H1})
    second = roles_of(TOPOLOGY, {H2})

    assert [name.label for name in first] == ["coordinator 0", "pserver 0", "worker 0"]
    assert [name.label for name in second] == ["pserver 1", "worker 1", "worker 2"]
    assert roles_of(TOPOLOGY, {Host("10.0.0.3")}) == ()


@given(parts=st.lists(st.sampled_from([H1, H2, Host("h3")]), max_size=3, unique=True))
def test_the_parts_of_all_machines_are_the_whole_job_and_do_not_overlap(
    parts: list[Host],
) -> None:
    hosts = [*parts, *(TOPOLOGY.hosts - set(parts))]

    every = [name for host in hosts for name in roles_of(TOPOLOGY, {host})]

    assert sorted(every) == sorted(roles_of(TOPOLOGY, set(hosts)))
    assert len(every) == 1 + 2 + 3


def test_a_workers_port_counts_up_on_its_host_where_none_is_given() -> None:
    found = workers("h1, h2,h1:6171,h1,h1")

    assert [e.text for e in found] == ["h1:6170", "h2:6170", "h1:6171", "h1:6172", "h1:6173"]


def test_an_ipv6_address_goes_in_brackets() -> None:
    assert parse_endpoint("[fd00::1]:6000", option="--coordinator") == Endpoint(
        Host("fd00::1"), 6000
    )
    assert workers("[fd00::1]")[0].text == "[fd00::1]:6170"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "an entry between commas is empty"),
        ("h1:1,,h2:1", "an entry between commas is empty"),
        ("h1", "the port is missing"),
        ("h1:", "the port must be 1 to 65535"),
        ("h1:0", "the port must be 1 to 65535"),
        ("h1:65536", "the port must be 1 to 65535"),
        ("h1:http", "the port must be 1 to 65535"),
        (":6000", "must look like host:port"),
        ("fd00::1:6000", "must look like host:port"),
        ("0.0.0.0:6000", "name an address that the other machines can reach"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_by_name(text: str, rule: str) -> None:
    with pytest.raises(TopologyError) as caught:
        servers(text)

    assert caught.value.option == "--servers"
    assert caught.value.rule.startswith(rule)


def test_a_coordinator_needs_a_port() -> None:
    with pytest.raises(TopologyError, match="the port is missing"):
        parse_endpoint("h1", option="--coordinator")


def test_two_processes_cannot_share_an_endpoint() -> None:
    with pytest.raises(TopologyError, match="h1:6000 is given to 2 processes"):
        Topology(
            servers=servers("h1:6000"),
            workers=workers("h1"),
            coordinator=Endpoint(Host("h1"), 6000),
        )


def test_a_job_has_a_server_and_a_worker() -> None:
    with pytest.raises(TopologyError, match="name at least one"):
        Topology(servers=(), workers=workers("h1"), coordinator=Endpoint(H1, 1))


@pytest.mark.parametrize(
    ("name", "port"),
    [(("coordinator", 0), 7000), (("pserver", 1), 6000), (("worker", 2), 6171)],
)
def test_every_process_has_its_endpoint(name: tuple[str, int], port: int) -> None:
    assert TOPOLOGY.endpoint_of(ProcessName(*name)).port == port


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h1", ("h1", 6379, "")),
        ("redis://:se%2Fcret@h1:7001/3", ("h1", 7001, "se/cret")),
        ("redis://[fd00::1]:7001/0", ("fd00::1", 7001, "")),
    ],
)
def test_a_redis_url_says_where_to_listen(url: str, address: tuple[str, int, str]) -> None:
    host, port, password = address

    assert parse_redis(url) == RedisAddress(host=Host(host), port=port, password=password)


@pytest.mark.parametrize("url", ["rediss://h1:6379/0", "unix:///run/redis.sock"])
def test_some_kinds_of_redis_can_only_be_joined(url: str) -> None:
    assert parse_redis(url) is None


@pytest.mark.parametrize("url", ["h1:6379", "http://h1", "redis://", "redis://:secret@h1:port"])
def test_what_is_no_redis_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_redis(url)

    assert "secret" not in str(caught.value)
