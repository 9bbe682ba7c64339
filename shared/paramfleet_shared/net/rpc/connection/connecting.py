"""Attempts to connect to one peer: by TCP or a Unix socket, with TLS or the job's secret."""

import asyncio
import hmac
import ssl
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, TypeVar

from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.rpc.connection.link import CallLostError, Link
from paramfleet_shared.net.rpc.connection.proof import (
    PeerUnprovenError,
    UnprovenError,
    proof_key,
)
from paramfleet_shared.net.rpc.connection.proving import ClientProving
from paramfleet_shared.net.rpc.connection.unix_socket import connect_nearby
from paramfleet_shared.net.rpc.endpoint import split_endpoint
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.tls import PeerRefusedError, TlsEnd
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.system.clock import Clock

__all__ = ["Connector", "RefusedPeer"]

P = TypeVar("P", bound=asyncio.BaseProtocol)

RefusedPeer = PeerRefusedError | PeerUnprovenError
"""Why an attempt failed that every other one would, too."""

_ASKS_FOR_PROOF = "it requires the job's secret, and this process has none"


class Connector:
    """Makes links to one peer; each is its user's to close.

    Args:
        endpoint: ``host:port`` of the peer.
        peer: Its name, as "pserver 0".
        limits: What the peer may not pass.
        clock: Time.
        tls: Talk TLS, to a peer with such a certificate.
        secret: What both ends prove to know first; None asks for nothing.
        resolve: Asked for the endpoint before each attempt.

    Raises:
        MalformedEndpointError: if ``endpoint`` is not ``host:port``.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        endpoint: str,
        *,
        peer: str,
        limits: Limits,
        clock: Clock,
        tls: TlsEnd | None,
        secret: JobSecret | None,
        resolve: Callable[[], Awaitable[str]] | None,
    ) -> None:
        split_endpoint(endpoint)  # raises here rather than at each attempt
        self.endpoint = endpoint
        self.links: set[Link] = set()
        """Those that aren't closed."""
        self._peer = peer
        self._limits = limits
        self._clock = clock
        self._tls = tls
        self._key = None if secret is None else _key_of(secret)
        self._resolve = resolve
        self._may_be_nearby = True

    async def connect(self) -> Link:
        """Try once.

        Raises:
            CallLostError: if the peer can't be reached now.
            PeerRefusedError: if its certificate isn't what it must be.
            PeerUnprovenError: if it doesn't know the job's secret, or we don't.
        """
        link: Link | None = None
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                if self._resolve is not None:
                    self.endpoint = await self._resolve()
                transport, link = await self._open(*split_endpoint(self.endpoint))
                self._require(transport.get_extra_info("peercert"))
                if self._key is None:  # else it has shown already that it is alive, and ours
                    await link.wait_ready()
                if link.connection.must_prove:
                    raise self._unproven(_ASKS_FOR_PROOF)
        except ssl.SSLCertVerificationError as error:
            reason = f"its certificate isn't accepted: {error.verify_message}"
            raise self._refused(reason) from error
        except UnprovenError as error:
            raise self._unproven(str(error)) from error
        except (PeerRefusedError, PeerUnprovenError) as error:
            _abort(link, str(error))
            raise
        except (TimeoutError, OSError, CallLostError, FleetError) as error:
            reason = str(error) or f"no answer within {self._limits.connect_timeout_s:g} s"
            _abort(link, reason)
            raise CallLostError(reason, processed=False) from error
        self._may_be_nearby = True
        return link

    async def _open(self, host: str, port: int) -> tuple[asyncio.Transport, Link]:
        """Connect by the shorter way if there is one, unless that has just failed.

        Raises:
            OSError: if the peer can't be reached.
            UnprovenError: if it doesn't know the secret.
        """
        if self._key is None:
            return await self._open_transport(host, port, self._new_link)
        transport, proving = await self._open_transport(host, port, self._new_proving)
        try:
            return transport, await proving.wait_link()
        except BaseException:
            transport.abort()
            raise

    async def _open_transport(
        self, host: str, port: int, protocol: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.context()
        may_be_nearby = self._may_be_nearby and context is None
        sock = connect_nearby(host, port) if may_be_nearby else None
        self._may_be_nearby = sock is None
        if sock is not None:
            return await loop.create_unix_connection(protocol, sock=sock)
        return await loop.create_connection(protocol, host, port, ssl=context)

    def _require(self, certificate: dict[str, Any] | None) -> None:
        reason = self._tls.refusal(certificate) if self._tls is not None else ""
        if reason:
            raise self._refused(reason)

    def _refused(self, reason: str) -> PeerRefusedError:
        return PeerRefusedError(peer=self._peer, endpoint=self.endpoint, reason=reason)

    def _unproven(self, reason: str) -> PeerUnprovenError:
        return PeerUnprovenError(peer=self._peer, endpoint=self.endpoint, reason=reason)

    def _new_proving(self) -> ClientProving:
        assert self._key is not None, "only then"
        return ClientProving(self._key, server=self._peer, make=self._new_link)

    def _new_link(self) -> Link:
        link = Link(self._limits, self._clock, authority=self.endpoint.encode())
        self.links.add(link)
        link.closed.add_done_callback(lambda _: self.links.discard(link))
        return link


def _abort(link: Link | None, reason: str) -> None:
    if link is not None:
        link.abort(reason)


@lru_cache(maxsize=4)
def _key_of(secret: JobSecret) -> hmac.HMAC:
    """Return what proves a secret: a process has one job's, for all of its connections."""
    return proof_key(secret.key("connections"))
