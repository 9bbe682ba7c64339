"""The same calls under TLS."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.rpc.client import PeerUnreachableError
from paramfleet_shared.wire.message import Message

OPENSSL = shutil.which("openssl")

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="no openssl to make a certificate with")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-made certificate for 127.0.0.1, and its key."""
    assert OPENSSL is not None
    folder = tmp_path_factory.mktemp("tls")
    key, crt = folder / "key.pem", folder / "crt.pem"
    subprocess.run(
        [
            OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", str(key), "-out", str(crt), "-days", "2",
            "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return crt, key


def server_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def client_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


async def test_a_message_comes_back_under_tls(
    house: Any, certificate: tuple[Path, Path]
) -> None:
    _, endpoint = await house.serve(
        {"echo": lambda request: request.message}, ssl=server_context(certificate)
    )
    channel = house.channel(endpoint, ssl=client_context(certificate))
    rows = np.random.default_rng(0).random(300_000)

    reply = await channel.call("echo", Message(tensors={"rows": rows}), timeout_s=5)

    assert np.array_equal(reply.tensors["rows"], rows)
    assert reply.tensors["rows"].ctypes.data % 64 == 0


async def test_a_server_may_ask_its_clients_for_certificates(
    house: Any, certificate: tuple[Path, Path]
) -> None:
    demanding, showing = server_context(certificate), client_context(certificate)
    demanding.verify_mode = ssl.CERT_REQUIRED
    demanding.load_verify_locations(certificate[0])
    showing.load_cert_chain(*certificate)
    _, endpoint = await house.serve({"echo": lambda request: request.message}, ssl=demanding)

    reply = await house.channel(endpoint, ssl=showing).call(
        "echo", Message(fields={"step": 3}), timeout_s=5
    )

    assert reply.fields == {"step": 3}
    with pytest.raises(PeerUnreachableError):
        await house.channel(endpoint, ssl=client_context(certificate)).call(
            "echo", Message(), timeout_s=0.5
        )


async def test_a_certificate_nobody_vouches_for_is_refused(
    house: Any, certificate: tuple[Path, Path]
) -> None:
    _, endpoint = await house.serve({}, ssl=server_context(certificate))
    channel = house.channel(endpoint, ssl=ssl.create_default_context())

    with pytest.raises(PeerUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
        await channel.call("echo", Message(), timeout_s=0.3)


async def test_a_tls_server_without_http2_is_refused(
    house: Any, certificate: tuple[Path, Path]
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(
        greet, "127.0.0.1", 0, ssl=server_context(certificate)
    )
    endpoint = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    channel = house.channel(endpoint, ssl=client_context(certificate))

    with pytest.raises(PeerUnreachableError, match="ALPN"):
        await channel.call("echo", Message(), timeout_s=0.3)
    await channel.close()
    listener.close()
    await listener.wait_closed()


async def test_a_plain_client_of_a_tls_server_is_unreachable_by_its_deadline(
    house: Any, certificate: tuple[Path, Path]
) -> None:
    _, endpoint = await house.serve({}, ssl=server_context(certificate))

    with pytest.raises(PeerUnreachableError):
        await house.channel(endpoint).call("echo", Message(), timeout_s=0.3)
