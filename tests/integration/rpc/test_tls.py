"""The same calls under mutual TLS, and who is refused: with real certificates of files."""

import asyncio
import shutil
import ssl
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.net.rights import OperationRefusedError
from paramfleet_shared.net.rpc.client import PeerRefusedError, PeerUnreachableError
from paramfleet_shared.net.rpc.session import CallerRefusedError
from paramfleet_shared.net.tls import CertificateFilesError, Tls, TlsFiles
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.testing.patience import LATE_S

ECHO = {
    "echo": lambda request: request.message,
    "who": lambda request: Message(fields={"role": request.role}),
    "added": lambda request: request.message,
}
FOR_WORKERS = {"echo": frozenset({"worker"}), "who": frozenset({"worker", "pserver"})}


async def serve(peers: Any, certificates: Any, authority: str = "ours") -> str:
    """Return where a pserver listens, for workers and pservers."""
    server = certificates.tls("pserver", authority=authority).accepts("worker", "pserver")
    _, endpoint = await peers.serve(ECHO, tls=server, rights=FOR_WORKERS)
    return str(endpoint)


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(each) for each in caplog.records if each.message == "tls.refused"]


async def test_a_message_comes_back_under_tls(peers: Any, certificates: Any) -> None:
    channel = peers.channel(
        await serve(peers, certificates), tls=certificates.tls("worker").expects("pserver")
    )
    rows = np.random.default_rng(0).random(300_000)

    reply = await channel.call("echo", Message(tensors={"rows": rows}), timeout_s=LATE_S)

    assert np.array_equal(reply.tensors["rows"], rows)
    assert reply.tensors["rows"].ctypes.data % 64 == 0


@pytest.mark.parametrize(
    ("role", "job", "age_days", "reason"),
    [
        ("admin", "flights", 0, "a certificate of admin; needed is a certificate of pserver"),
        ("worker", "clicks", 0, "a certificate of job clicks"),
        ("worker", "flights", 60, "its certificate expired at"),
        ("worker", "flights", -2, "its certificate is valid only from"),
    ],
)
async def test_a_caller_is_refused_with_the_reason_on_both_sides(  # noqa: PLR0917
    peers: Any,
    certificates: Any,
    caplog: pytest.LogCaptureFixture,
    role: str,
    job: str,
    age_days: float,
    reason: str,
) -> None:
    endpoint = await serve(peers, certificates)
    files = certificates.issue(role, job=job, age_days=age_days)
    channel = peers.channel(endpoint, tls=Tls(files, job="flights").expects("pserver"))

    with pytest.raises(CallerRefusedError, match="pserver 0 refuses") as refused:
        await channel.call("echo", Message(), timeout_s=LATE_S)

    assert reason in refused.value.reason
    (facts,) = refusals(caplog)
    assert facts["peer"] == refused.value.caller
    assert reason in facts["reason"]


async def test_a_handler_is_told_the_role_of_the_callers_certificate(
    peers: Any, certificates: Any
) -> None:
    endpoint = await serve(peers, certificates)

    answers = [
        await peers.channel(endpoint, tls=certificates.tls(role).expects("pserver")).call(
            "who", Message(), timeout_s=LATE_S
        )
        for role in ("worker", "pserver")
    ]

    assert [each.fields["role"] for each in answers] == ["worker", "pserver"]


@pytest.mark.parametrize(
    ("role", "operation", "allowed"),
    [("pserver", "echo", "worker"), ("worker", "added", "nobody")],
)
async def test_an_operation_is_refused_to_other_roles_and_to_all_if_it_names_none(
    peers: Any, certificates: Any, role: str, operation: str, allowed: str
) -> None:
    endpoint = await serve(peers, certificates)
    channel = peers.channel(endpoint, tls=certificates.tls(role).expects("pserver"))

    with pytest.raises(OperationRefusedError, match=f"certificate of {role}") as refused:
        await channel.call(operation, Message(), timeout_s=LATE_S)

    facts = {"server": "pserver 0", "operation": operation, "role": role, "allowed": allowed}
    assert refused.value.facts == facts
    answer = await channel.call("who", Message(), timeout_s=LATE_S)
    assert answer.fields["role"] == role, "the connection goes on"


async def test_a_refused_caller_learns_it_however_long_its_request_is(
    peers: Any, certificates: Any
) -> None:
    tls = certificates.tls("admin").expects("pserver")
    channel = peers.channel(await serve(peers, certificates), tls=tls)
    rows = np.zeros(1 << 20)

    with pytest.raises(CallerRefusedError):
        await channel.call("echo", Message(tensors={"rows": rows}), timeout_s=LATE_S)


async def test_a_caller_without_certificate_is_refused_and_logged(
    peers: Any, certificates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = await serve(peers, certificates)
    bare = ssl.create_default_context(cafile=str(certificates.folder / "ours" / "ca.crt"))
    bare.set_alpn_protocols(["h2"])

    reader, writer = await asyncio.open_connection(*endpoint.split(":"), ssl=bare)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    await reader.readexactly(9)
    writer.close()

    (facts,) = refusals(caplog)
    assert "no certificate" in facts["reason"]
    assert facts["peer"].startswith("127.0.0.1:")


async def test_a_caller_of_another_authority_is_refused_and_logged(
    peers: Any, certificates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = await serve(peers, certificates)
    files = certificates.issue("worker", authority="theirs")
    liar = Tls(replace(files, ca=certificates.folder / "ours" / "ca.crt"), job="flights")

    with pytest.raises(PeerUnreachableError, match="pserver 0"):
        await peers.channel(endpoint, tls=liar.expects("pserver")).call(
            "echo", Message(), timeout_s=0.5
        )

    facts = refusals(caplog)[0]
    assert "isn't accepted" in facts["reason"]
    assert facts["peer"].startswith("127.0.0.1:")


async def test_a_server_of_another_authority_is_refused_at_once(
    peers: Any, certificates: Any
) -> None:
    endpoint = await serve(peers, certificates, "theirs")
    channel = peers.channel(endpoint, tls=certificates.tls("worker").expects("pserver"))

    with pytest.raises(PeerRefusedError, match="pserver 0 at 127") as refused:
        await channel.call("echo", Message(), timeout_s=20)

    assert "self-signed" in refused.value.reason or "unable to get" in refused.value.reason


async def test_a_worker_that_poses_as_a_pserver_is_refused(
    peers: Any, certificates: Any
) -> None:
    _, endpoint = await peers.serve(ECHO, tls=certificates.tls("worker").accepts("worker"))
    channel = peers.channel(endpoint, tls=certificates.tls("worker").expects("pserver"))

    with pytest.raises(PeerRefusedError, match="a certificate of worker"):
        await channel.call("echo", Message(), timeout_s=20)


async def test_a_plain_client_of_a_tls_server_is_unreachable_and_logged(
    peers: Any, certificates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = await serve(peers, certificates)

    with pytest.raises(PeerUnreachableError):
        await peers.channel(endpoint).call("echo", Message(), timeout_s=0.3)

    assert "no tls" in refusals(caplog)[0]["reason"]


async def test_a_tls_server_without_http2_is_refused(peers: Any, certificates: Any) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    other = certificates.tls("pserver").accepts("worker", protocol="http/1.1")
    listener = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=other.context())
    endpoint = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    channel = peers.channel(endpoint, tls=certificates.tls("worker").expects("pserver"))

    with pytest.raises(PeerUnreachableError, match=r"ALPN|ALERT"):
        await channel.call("echo", Message(), timeout_s=0.3)
    await channel.close()
    listener.close()
    await listener.wait_closed()


async def test_a_renewed_certificate_is_used_for_the_next_connection(
    peers: Any, certificates: Any
) -> None:
    old = certificates.issue("worker", age_days=60)
    tls = Tls(old, job="flights")
    endpoint = await serve(peers, certificates)
    with pytest.raises(CallerRefusedError, match="expired"):
        await peers.channel(endpoint, tls=tls.expects("pserver")).call(
            "echo", Message(), timeout_s=LATE_S
        )

    certificates.issue("worker")
    reply = await peers.channel(endpoint, tls=tls.expects("pserver")).call(
        "echo", Message(fields={"step": 3}), timeout_s=LATE_S
    )

    assert reply.fields == {"step": 3}


async def test_files_that_become_unusable_leave_the_former_certificate_in_use(
    peers: Any, certificates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tls = certificates.tls("worker")
    endpoint = await serve(peers, certificates)

    certificates.issue("worker").cert.write_text("half a file")
    reply = await peers.channel(endpoint, tls=tls.expects("pserver")).call(
        "echo", Message(fields={"step": 3}), timeout_s=LATE_S
    )

    assert reply.fields == {"step": 3}
    assert any(each.message == "tls.not_reloaded" for each in caplog.records)


@pytest.mark.parametrize("missing", ["ca.crt", "worker.crt", "worker.key"])
def test_a_missing_file_is_named(certificates: Any, missing: str) -> None:
    files = certificates.issue("worker")
    (files.ca.parent / missing).unlink()

    with pytest.raises(CertificateFilesError, match=f"missing: .*{missing}"):
        Tls(files, job="flights")


def test_a_key_of_another_certificate_is_told(certificates: Any) -> None:
    files = certificates.issue("worker")
    other = certificates.issue("pserver")
    shutil.copy(other.key, files.key)

    with pytest.raises(CertificateFilesError, match="KEY_VALUES_MISMATCH"):
        Tls(TlsFiles(files.ca, files.cert, files.key), job="flights")
