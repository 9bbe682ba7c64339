"""Who may ask what of a process's HTTP addresses.

Every route says whom it serves, with ``@requires``; a route that says nothing keeps the
server from starting. A ``Gate`` asks who the caller is, by a token (``Authorization:
Bearer``) or by a client certificate, and refuses with 401 whoever doesn't say and with 403
whoever isn't meant.

Without tokens and without certificates, nobody can be told from another. Then everybody may
read, and only callers on this machine may do more.
"""

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from aiohttp import web

from paramfleet_shared.config import JobSettings
from paramfleet_shared.errors import ContractError
from paramfleet_shared.texts import printable, shortened
from paramfleet_shared.tls import TlsEnd, member_of
from paramfleet_shared.tokens import Tokens

__all__ = [
    "NOBODY",
    "Access",
    "Gate",
    "Identity",
    "Role",
    "UnmarkedRouteError",
    "gate_of",
    "identity_of",
    "require_marks",
    "requires",
]

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Callable[..., Any])

Role = Literal["read", "worker", "pserver", "coordinator", "admin"]
"""What a token or a certificate may stand for."""

Access = Literal["open", "read", "worker", "pserver", "admin"]
"""Whom a route serves."""

_SERVED: dict[str, frozenset[str]] = {
    "read": frozenset(get_args(Role)),
    "worker": frozenset({"worker", "coordinator", "admin"}),
    "pserver": frozenset({"pserver", "coordinator", "admin"}),
    "admin": frozenset({"admin"}),
}
"""By access: the roles that have it."""

_MARK = "__paramfleet_access__"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_TOKEN_LENGTH = 512


class UnmarkedRouteError(ContractError):
    """A route doesn't say whom it serves."""

    code = "contract.unmarked_route"

    def __init__(self, *, method: str, path: str) -> None:
        super().__init__(
            f"the handler of {method} {path} has no access: mark it with @requires",
            method=method,
            path=path,
        )
        self.method = method
        self.path = path


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who asks."""

    roles: frozenset[str]
    """What the caller's token and certificate stand for."""

    name: str
    """The token's or certificate's name, for the audit; never a secret."""


NOBODY = Identity(roles=frozenset(), name="anonymous")

_IDENTITY = web.RequestKey("paramfleet_identity", Identity)


def requires(access: Access) -> Callable[[H], H]:
    """Mark a handler with whom it serves.

    Args:
        access: ``open`` serves everybody; ``read`` every known caller; ``worker`` and
            ``pserver`` that role and admin; ``admin`` admin alone.
    """

    def mark(handler: H) -> H:
        setattr(handler, _MARK, access)
        return handler

    return mark


def require_marks(app: web.Application) -> None:
    """Look whether every route of an application says whom it serves.

    Raises:
        UnmarkedRouteError: for the first that doesn't.
    """
    for route in app.router.routes():
        if _access_of(route.handler) is None:
            path = route.resource.canonical if route.resource is not None else "?"
            raise UnmarkedRouteError(method=route.method, path=path)


def identity_of(request: web.Request) -> Identity:
    """Return who made a request that the gate let pass."""
    identity: Identity = request.get(_IDENTITY, NOBODY)
    return identity


class Gate:
    """Lets requests pass, or refuses them.

    Args:
        by_token: Returns whom a token stands for, None if for nobody; None where no tokens
            are configured.
        by_certificate: Returns whom the caller's certificate stands for, or in words why
            it does for nobody; None where callers aren't asked for certificates.
    """

    def __init__(
        self,
        *,
        by_token: Callable[[str], Identity | None] | None = None,
        by_certificate: Callable[[web.Request], Identity | str] | None = None,
    ) -> None:
        self._by_token = by_token
        self._by_certificate = by_certificate

    @property
    def is_closed(self) -> bool:
        """Whether callers must say who they are."""
        return self._by_token is not None or self._by_certificate is not None

    @web.middleware
    async def middleware(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Answer a request, or refuse it."""
        access = _access_of(request.match_info.handler)
        if access is None and request.match_info.http_exception is None:
            access = "admin"
        if access in {None, "open"}:
            return await handler(request)
        refusal = self._judge(request, str(access))
        return await handler(request) if refusal is None else refusal

    def _judge(self, request: web.Request, access: str) -> web.Response | None:
        """Return why a request is refused, None if it isn't."""
        if request.method not in _SAFE_METHODS and _is_foreign(request):
            return _refuse(request, 403, access, "asked by a page of another origin")
        if not self.is_closed:
            if access == "read" or _is_local(request):
                return None
            reason = "without tokens or certificates only callers on this machine may ask it"
            return _refuse(request, 403, access, reason)
        found: list[Identity | str] = [self._known_by_token(request)]
        if self._by_certificate is not None:
            found.append(self._by_certificate(request))
        known = [each for each in found if isinstance(each, Identity)]
        if not known:
            return _refuse(request, 401, access, "; ".join(map(str, found)))
        identity = Identity(
            roles=frozenset[str]().union(*(each.roles for each in known)),
            name=", ".join(each.name for each in known),
        )
        if not identity.roles & _SERVED[access]:
            who = f"{identity.name} is {' and '.join(sorted(identity.roles))}"
            return _refuse(request, 403, access, who)
        request[_IDENTITY] = identity
        return None

    def _known_by_token(self, request: web.Request) -> Identity | str:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._by_token is None or kind.lower() != "bearer":
            return "no token"
        token = token.strip()
        known = self._by_token(token) if 0 < len(token) <= _MAX_TOKEN_LENGTH else None
        return known or "the token isn't known"


def gate_of(settings: JobSettings, tls: TlsEnd | None) -> Gate:
    """Return the gate that a process's settings ask for.

    Args:
        settings: Its settings.
        tls: The end that its admin address is served with.

    Raises:
        TokensFileError: if the file of tokens can't be read.
    """
    tokens = Tokens(Path(settings.tokens_file)) if settings.tokens_file else None

    def by_token(token: str) -> Identity | None:
        assert tokens is not None, "asked only where there are some"
        entry = tokens.find(token)
        if entry is None:
            return None
        return Identity(roles=frozenset({entry.role}), name=f"token {entry.name}")

    def by_certificate(request: web.Request) -> Identity | str:
        assert tls is not None, "asked only where there is one"
        transport = request.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        member = member_of(certificate or {})
        reason = tls.refusal(certificate)
        if reason or member is None:
            return reason
        return Identity(roles=frozenset({member.role}), name=f"certificate of {member.role}")

    return Gate(
        by_token=None if tokens is None else by_token,
        by_certificate=None if tls is None else by_certificate,
    )


def _access_of(handler: Any) -> str | None:
    access = getattr(handler, _MARK, None)
    return access if isinstance(access, str) else None


def _is_local(request: web.Request) -> bool:
    """Whether the caller is on this machine."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    if not peer:  # a unix socket has none
        return request.transport is not None
    try:
        return ipaddress.ip_address(peer[0]).is_loopback
    except ValueError:
        return False


def _is_foreign(request: web.Request) -> bool:
    """Whether a browser asks for a page that isn't ours."""
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != request.host


def _refuse(request: web.Request, status: int, access: str, reason: str) -> web.Response:
    peer = request.remote or "?"
    path = shortened(printable(request.path, lines=False))
    log.warning(
        "access.refused",
        extra={
            "peer": peer,
            "method": request.method,
            "path": path,
            "needed": access,
            "reason": reason,
        },
    )
    word = "unauthenticated" if status == 401 else "forbidden"
    message = f"{request.method} {path} is for {access}: {reason}"
    error = {"code": word, "message": message, "needed": access}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return web.json_response({"error": error}, status=status, headers=headers)
