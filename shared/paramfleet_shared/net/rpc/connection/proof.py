"""Both ends of a new connection prove that they know the job's secret, before anything else.

::

    client                                  server
      magic, nonce                    ->
                                      <-    magic, nonce, HMAC("server", ...)
      HMAC("client", ...)             ->
      HTTP/2                          <->   HTTP/2

Each HMAC is over both nonces and the name of the server that the client means to reach. The
nonces are fresh, so that nothing recorded can be sent again, and neither end's answer is of
use on another connection. The name keeps somebody who took a dead member's port from passing a
challenge on to another member. Nothing is encrypted: that takes certificates.

The client waits for the server's first bytes anyway, so this costs no further round trip.

No input and output here: ``paramfleet_shared.net.rpc.connection.proving`` has the sockets.
"""

import hashlib
import hmac
from typing import final

from paramfleet_shared.errors import ContractError

__all__ = [
    "MAX_HELLO_BYTES",
    "NONCE_BYTES",
    "ClientProof",
    "PeerUnprovenError",
    "ServerProof",
    "UnprovenError",
    "proof_key",
]

_MAGIC = b"paramfleet-1\r\n\r\n"
"""Begins no HTTP/1 request and no HTTP/2 connection; another version has another number."""

NONCE_BYTES = 32
_MAC_BYTES = 32
_HELLO_BYTES = len(_MAGIC) + NONCE_BYTES
_REPLY_BYTES = _HELLO_BYTES + _MAC_BYTES

MAX_HELLO_BYTES = 4096
"""What is read at a time before the other end is known."""


class PeerUnprovenError(ContractError):
    """The other end of a connection doesn't prove that it knows the job's secret."""

    code = "contract.peer_unproven"
    peer: str
    endpoint: str
    reason: str
    sentence = (
        "no connection to {peer} at {endpoint}: {reason}; every process of a job needs "
        "the same PARAMFLEET_SECRET_FILE and PARAMFLEET_JOB"
    )


class UnprovenError(Exception):
    """What the other end sent proves nothing; the connection must end."""


def proof_key(key: bytes) -> hmac.HMAC:
    """Return a key as both ends take it: half of the work of each proof, done once."""
    return hmac.new(key, digestmod=hashlib.sha256)


@final
class ServerProof:
    """The serving end: give it what comes, and send what it returns.

    Args:
        key: What both ends must know; of ``proof_key``.
        nonce: 32 fresh random bytes.
    """

    __slots__ = ("_client_nonce", "_expected", "_key", "_nonce", "_received", "proven")

    def __init__(self, key: hmac.HMAC, *, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES, "the caller's promise"
        self._key = key
        self._nonce = nonce
        self._received = b""
        self._client_nonce = b""
        self._expected = b""
        self.proven = False
        """Whether the client knows the secret."""

    @property
    def is_asked(self) -> bool:
        """Whether the client's hello is here, and ``answer`` is due."""
        return bool(self._client_nonce) and not self._expected

    @property
    def is_answered(self) -> bool:
        """Whether the client has the challenge, and its proof is due or here."""
        return bool(self._expected)

    @property
    def rest(self) -> bytes:
        """What came behind the client's proof."""
        return self._received if self.proven else b""

    def receive(self, data: bytes) -> None:
        """Take bytes from the client.

        Raises:
            UnprovenError: if they prove nothing.
        """
        self._received += data
        if self._expected:
            self._check()
            return
        start = self._received[:_HELLO_BYTES]
        if not _begins_alike(start):
            raise UnprovenError("it doesn't know of the job's secret")
        if len(self._received) > _HELLO_BYTES:  # no proof is possible yet
            raise UnprovenError("it doesn't wait for the challenge")
        if len(start) == _HELLO_BYTES:
            self._client_nonce = start[len(_MAGIC) :]
            self._received = b""

    def answer(self, server: str) -> bytes:
        """Return the challenge, with this end's own proof.

        Args:
            server: The name of this server, as its clients know it.
        """
        nonces = self._client_nonce + self._nonce
        self._expected = _mac(self._key, b"client", nonces, server)
        return _MAGIC + self._nonce + _mac(self._key, b"server", nonces, server)

    def _check(self) -> None:
        proof = self._received[:_MAC_BYTES]
        if len(proof) < _MAC_BYTES:
            return
        if not hmac.compare_digest(proof, self._expected):
            raise UnprovenError("it knows another secret")
        self._received = self._received[_MAC_BYTES:]
        self.proven = True


@final
class ClientProof:
    """The calling end.

    Args:
        key: What both ends must know; of ``proof_key``.
        server: The name of the server that is meant.
        nonce: 32 fresh random bytes.
    """

    __slots__ = ("_key", "_nonce", "_received", "_server", "rest")

    def __init__(self, key: hmac.HMAC, *, server: str, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES, "the caller's promise"
        self._key = key
        self._server = server
        self._nonce = nonce
        self._received = b""
        self.rest = b""
        """What came behind the server's proof."""

    @property
    def hello(self) -> bytes:
        """What to send first."""
        return _MAGIC + self._nonce

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the server.

        Returns:
            Our proof to send, once the server has proven itself; empty before.

        Raises:
            UnprovenError: if it doesn't.
        """
        self._received += data
        start = self._received[:_REPLY_BYTES]
        if not _begins_alike(start):
            raise UnprovenError("it doesn't require the job's secret")
        if len(start) < _REPLY_BYTES:
            return b""
        nonces = self._nonce + start[len(_MAGIC) : _HELLO_BYTES]
        expected = _mac(self._key, b"server", nonces, self._server)
        if not hmac.compare_digest(start[_HELLO_BYTES:], expected):
            reason = f"it knows another secret, or isn't {self._server}"
            raise UnprovenError(reason)
        self.rest = self._received[_REPLY_BYTES:]
        return _mac(self._key, b"client", nonces, self._server)


def _begins_alike(start: bytes) -> bool:
    return start.startswith(_MAGIC) or _MAGIC.startswith(start)


def _mac(key: hmac.HMAC, end: bytes, nonces: bytes, server: str) -> bytes:
    """Return an end's proof; the parts before the name have a fixed length each."""
    mac = key.copy()
    mac.update(end + nonces + server.encode())
    return mac.digest()
