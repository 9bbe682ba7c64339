"""Which connections a server lets in, decided without sockets."""

from functools import partial

import pytest

from paramfleet_shared.net.http2.limits.budget import BodyBudget
from paramfleet_shared.net.rpc.connection.limits import (
    Admission,
    ConnectionTable,
    Peer,
    Quota,
    Repeats,
    peer_of,
    quota_of,
)


def table(
    budget: BodyBudget | None = None, *, evicts: bool = False, **changes: int
) -> ConnectionTable:
    sizes = {"in_all": 10, "per_peer": 4, "max_descriptor": 100, "num_open_files": 128}
    return ConnectionTable(Quota(**{**sizes, **changes}), budget, evicts=evicts)


def admit(into: ConnectionTable, host: str, descriptor: int = 5) -> Admission | str:
    return into.admit(peer_of(host, f"{host}:1"), descriptor=descriptor)


def admitted(into: ConnectionTable, host: str) -> Admission:
    admission = admit(into, host)
    assert isinstance(admission, Admission)
    return admission


def test_one_peer_gets_so_many_and_others_still_come_in() -> None:
    connections = table()
    for _ in range(4):
        admitted(connections, "10.0.0.1")

    refused = admit(connections, "10.0.0.1")
    assert refused == "4 connections of 10.0.0.1 are open, as many as one peer gets"
    admitted(connections, "10.0.0.2")
    assert len(connections) == 5


def test_all_peers_together_get_so_many() -> None:
    connections = table()
    for host in range(10):
        admitted(connections, f"10.0.0.{host}")

    refused = admit(connections, "10.0.0.99")
    assert refused == "10 connections are open, as many as are taken (max_connections)"


def test_a_connection_that_ends_makes_place_for_another_once() -> None:
    connections = table(per_peer=1)
    first = admitted(connections, "10.0.0.1")
    assert isinstance(admit(connections, "10.0.0.1"), str)

    first.release()
    first.release()

    assert len(connections) == 0
    admitted(connections, "10.0.0.1")
    assert len(connections) == 1


def cuts_of(admissions: list[Admission]) -> list[int]:
    """Return what gets the number of each admission that is closed for another."""
    cut: list[int] = []
    for number, admission in enumerate(admissions):
        admission.cut = partial(cut.append, number)
    return cut


def test_a_new_connection_ends_the_oldest_of_its_peer_whose_caller_is_not_known() -> None:
    connections = table(evicts=True)
    other = admitted(connections, "10.0.0.2")
    held = [admitted(connections, "10.0.0.1") for _ in range(4)]
    cut = cuts_of([*held, other])
    held[0].prove()

    new = [admitted(connections, "10.0.0.1") for _ in range(2)]

    assert cut == [1, 2]
    assert [each.evicted for each in new] == [held[1].peer, held[2].peer]
    assert len(connections) == 5
    held[1].release()
    assert len(connections) == 5, "it was taken off already"


def test_a_new_peer_ends_the_oldest_of_all_whose_caller_is_not_known() -> None:
    connections = table(evicts=True)
    held = [admitted(connections, f"10.0.0.{host}") for host in range(10)]
    cut = cuts_of(held)
    held[0].prove()
    held[1].release()
    admitted(connections, "10.0.0.98")
    assert cut == [], "there was a place"

    admitted(connections, "10.0.0.99")

    assert cut == [2]
    assert len(connections) == 10


def test_known_callers_keep_their_connections_and_further_ones_are_refused() -> None:
    connections = table(evicts=True)
    held = [admitted(connections, "10.0.0.1") for _ in range(4)]
    cut = cuts_of(held)
    for each in held:
        each.prove()

    refused = admit(connections, "10.0.0.1")

    assert refused == "4 connections of 10.0.0.1 are open, as many as one peer gets"
    assert cut == []
    held[2].release()
    held[2].prove()
    assert admitted(connections, "10.0.0.1").evicted is None


def test_the_last_descriptors_are_kept_back_and_the_reason_says_what_to_do() -> None:
    connections = table()

    assert isinstance(admit(connections, "10.0.0.1", 99), Admission)
    refused = admit(connections, "10.0.0.1", 100)
    assert isinstance(refused, str)
    assert refused.startswith("100 of 128 open files are in use")
    assert "ulimit -n" in refused


@pytest.mark.parametrize(
    ("host", "group", "is_local"),
    [
        ("127.0.0.1", "this machine", True),
        ("127.8.9.1", "this machine", True),
        ("::1", "this machine", True),
        ("::ffff:127.0.0.1", "this machine", True),
        ("::ffff:10.1.2.3", "10.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", False),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64", False),
        ("fe80::1%eth0", "fe80::/64", False),
        ("somewhere", "somewhere", False),
    ],
)
def test_addresses_that_one_machine_has_count_together(
    host: str, group: str, is_local: bool
) -> None:
    assert peer_of(host, "name") == Peer("name", group, is_local)


@pytest.mark.parametrize(
    ("num_open_files", "max_connections", "expected"),
    [
        (20_000, 0, (10_000, 1024, 19_744)),
        (1024, 0, (768, 384, 768)),
        (256, 0, (192, 96, 192)),
        (20_000, 64, (64, 32, 19_744)),
        (1024, 5000, (768, 384, 768)),
        (4, 1, (1, 1, 3)),
    ],
)
def test_a_quota_follows_from_the_limit_of_open_files(
    num_open_files: int, max_connections: int, expected: tuple[int, int, int]
) -> None:
    quota = quota_of(
        num_open_files=num_open_files, max_connections=max_connections, per_peer=1024
    )

    assert (quota.in_all, quota.per_peer, quota.max_descriptor) == expected


def test_the_admin_address_may_have_half_of_what_others_leave() -> None:
    data = quota_of(num_open_files=1024, max_connections=0, per_peer=64)
    admin = quota_of(num_open_files=1024, max_connections=0, per_peer=64, is_admin=True)

    assert data.max_descriptor == 768
    assert admin.max_descriptor == 896


def test_another_machine_gets_half_of_the_memory_and_this_one_all() -> None:
    connections = table(BodyBudget(1000))
    shares = [
        admitted(connections, host).share for host in ("10.0.0.1", "10.0.0.1", "127.0.0.1")
    ]
    process = connections.admit(Peer("process 7", "process 7", True), descriptor=5)
    assert isinstance(process, Admission)

    assert shares[0] is shares[1]
    assert [share.limit_bytes for share in shares if share] == [500, 500, 1000]
    assert process.share is shares[2]


def test_who_comes_back_finds_what_it_held_forgotten() -> None:
    connections = table(BodyBudget(1000))
    first = admitted(connections, "10.0.0.1")
    first.release()

    again = admitted(connections, "10.0.0.1").share
    assert again is not None
    assert again is not first.share
    assert again.take(500)


def test_what_repeats_is_said_once_a_while_with_how_often_it_was() -> None:
    repeats = Repeats(10.0)

    said = [repeats.count("refused", now) for now in (0.0, 1.0, 2.0, 9.9, 10.0, 11.0)]

    assert said == [1, 0, 0, 0, 4, 0]
    assert repeats.count("cut", 11.0, num=7) == 7


def test_a_crowd_of_things_is_said_as_one_and_takes_no_more_memory() -> None:
    repeats = Repeats(10.0, max_things=2)

    first = [repeats.count(f"peer {n}", 0.0) for n in range(1000)]
    again = [repeats.count(f"peer {n}", 10.0) for n in (0, 1, 2)]
    later = [repeats.count(f"peer {n}", 20.0) for n in (7, 8, 7, 9)]

    assert first == [1, 1, 1, *[0] * 997]
    assert again == [1, 1, 998]
    assert later == [1, 1, 0, 1], "those who were silent for a period are forgotten"
    assert repeats.num_things == 3
