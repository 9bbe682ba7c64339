"""Both ends of a connection prove the secret, and nothing recorded is of use again."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_shared.net.rpc.connection.proof import (
    ClientProof,
    ServerProof,
    UnprovenError,
    proof_key,
)

KEY = proof_key(b"k" * 32)
NONCES = (b"c" * 32, b"s" * 32)


def ends(**changes: Any) -> tuple[ClientProof, ServerProof]:
    facts = {"client_key": KEY, "server_key": KEY, "wanted": "pserver 0", **changes}
    client = ClientProof(facts["client_key"], server=facts["wanted"], nonce=NONCES[0])
    return client, ServerProof(facts["server_key"], nonce=facts.get("nonce", NONCES[1]))


def greet(client: ClientProof, server: ServerProof, name: str = "pserver 0") -> bytes:
    server.receive(client.hello)
    assert server.is_asked
    return server.answer(name)


def test_two_ends_of_one_secret_prove_it() -> None:
    client, server = ends()
    proof = client.receive(greet(client, server))
    server.receive(proof)
    assert server.proven
    assert (client.rest, server.rest) == (b"", b"")


@given(st.data())
def test_it_matters_not_how_the_bytes_are_cut(data: st.DataObject) -> None:
    client, server = ends()
    for byte in client.hello:
        assert not server.is_asked
        server.receive(bytes([byte]))
    reply = server.answer("pserver 0") + b"more"
    cut = data.draw(st.integers(0, len(reply)))
    proof = client.receive(reply[:cut]) or client.receive(reply[cut:])
    text = proof + b"behind"
    at = data.draw(st.integers(0, len(text)))
    server.receive(text[:at])
    if not server.proven:
        server.receive(text[at:])
        assert server.rest == b"behind"
    assert server.proven


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"server_key": proof_key(b"x" * 32)}, "another secret"),
        ({"wanted": "pserver 1"}, "isn't pserver 1"),
    ],
)
def test_a_client_proves_nothing_to_a_server_that_it_doesnt_know(
    changes: dict[str, Any], reason: str
) -> None:
    client, server = ends(**changes)
    with pytest.raises(UnprovenError, match=reason):
        client.receive(greet(client, server))


def test_a_recorded_proof_opens_no_second_connection() -> None:
    client, server = ends()
    recorded = client.receive(greet(client, server))
    _, another = ends(nonce=b"t" * 32)
    another.receive(client.hello)
    another.answer("pserver 0")
    with pytest.raises(UnprovenError, match="another secret"):
        another.receive(recorded)
    assert not another.proven


def test_a_servers_own_proof_sent_back_to_it_is_none() -> None:
    client, server = ends()
    reply = greet(client, server)
    with pytest.raises(UnprovenError):
        server.receive(reply[-32:])


def test_a_challenge_passed_on_to_a_member_of_another_name_fails() -> None:
    client, _ = ends(wanted="pserver 0")
    _, other = ends()
    with pytest.raises(UnprovenError, match="isn't pserver 0"):
        client.receive(greet(client, other, name="pserver 1"))


@pytest.mark.parametrize("text", [b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1", b"\x16\x03\x01"])
def test_another_protocol_is_told_apart_by_its_first_bytes(text: bytes) -> None:
    _, server = ends()
    with pytest.raises(UnprovenError, match="doesn't know"):
        server.receive(text)
    client, _ = ends()
    with pytest.raises(UnprovenError, match="doesn't require"):
        client.receive(text)


def test_nothing_is_taken_before_the_challenge() -> None:
    client, server = ends()
    with pytest.raises(UnprovenError, match="doesn't wait"):
        server.receive(client.hello + b"x")


@given(st.binary(min_size=1, max_size=300))
def test_no_bytes_of_a_stranger_prove_anything(noise: bytes) -> None:
    client, server = ends()
    greet(client, server)
    with contextlib.suppress(UnprovenError):
        server.receive(noise)
    assert not server.proven
