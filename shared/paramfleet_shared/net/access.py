"""Who may ask what of a process's HTTP addresses.

Every route says whom it serves, with ``@requires``; a route that says nothing keeps the
server from starting. A ``Gate`` asks who the caller is, by a token (``Authorization:
Bearer``), by a client certificate or by the session of a browser, and refuses with 401
whoever doesn't say and with 403 whoever isn't meant. Who asks by a host that isn't this
machine's is refused with 421, whatever they ask for.

Without tokens, certificates and a secret callers can't be distinguished: then what isn't
open is refused, on this machine, too, where other users are callers like any.
"""

import logging
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from aiohttp import web

from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.hosts import AllowedHosts
from paramfleet_shared.net.secret import MIN_SECRET_LENGTH, JobSecret
from paramfleet_shared.net.sessions import SESSION_LIFE_S, Attempts, Sessions
from paramfleet_shared.net.tls import TlsEnd, member_of
from paramfleet_shared.net.tokens import KnownTokens, SeveralTokens, Tokens, entry_of
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.telemetry.seldom import SeldomWarning
from paramfleet_shared.values.texts import printable, shortened

__all__ = [
    "GATE",
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

Role = Literal["read", "serving", "worker", "pserver", "coordinator", "admin"]
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

_REFUSALS_AT_ONCE = 10
"""Refusals that are logged within a few seconds: anybody can ask, as often as they like."""

_KEY_HEADER = "Paramfleet-Key"
"""Holds the half of a session that isn't in the cookie."""

_IN_BROWSER = ", in a browser"

_NO_WAY_IN = (
    "this process has no tokens: make a file with `paramfleet tokens new --role admin --file "
    "FILE` and name it in PARAMFLEET_TOKENS_FILE of every process, or give the job a secret "
    "(PARAMFLEET_SECRET_FILE) or certificates (PARAMFLEET_TLS_DIR)"
)


class UnmarkedRouteError(ContractError):
    """A route doesn't say whom it serves."""

    code = "contract.unmarked_route"
    method: str
    path: str
    sentence = "the handler of {method} {path} has no access: mark it with @requires"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who asks."""

    roles: frozenset[str]
    """What the caller's token and certificate stand for."""

    name: str
    """The token's or certificate's name, for the audit; never a secret."""

    is_valid: Callable[[], bool] = field(default=lambda: True, repr=False, compare=False)
    """Whether it still holds, as for a token that may be revoked."""


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
            are accepted.
        by_certificate: Returns whom the caller's certificate stands for, or in words why
            it does for nobody; None where callers aren't asked for certificates.
        hosts: The hosts that it may be asked by; without, this machine's addresses.
        open_reading: Whether everybody may read.
        clock: For how long codes and sessions last, and how often refusals are logged.
        job: Named by commands in refusals; empty where there is none.
    """

    def __init__(
        self,
        *,
        by_token: Callable[[str], Identity | None] | None = None,
        by_certificate: Callable[[web.Request], Identity | str] | None = None,
        hosts: AllowedHosts | None = None,
        open_reading: bool = False,
        clock: Clock | None = None,
        job: str = "",
    ) -> None:
        self._by_token = by_token
        self._by_certificate = by_certificate
        self._hosts = hosts or AllowedHosts()
        self._open_reading = open_reading
        self._clock = clock or SystemClock()
        self._sessions: Sessions[Identity] = Sessions()
        self._attempts = Attempts()
        self._job = job
        self._refused = SeldomWarning(
            log, "access.refused", self._clock, at_once=_REFUSALS_AT_ONCE
        )

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
        reason = self._hosts.refusal(request.headers.getall("Host", []), local=_local(request))
        if reason:
            return self._refuse(request, 421, access or "open", reason)
        if access is None:
            return await handler(request)
        if request.method not in _SAFE_METHODS and _is_foreign(request):
            return self._refuse(request, 403, access, "asked by a page of another origin")
        refusal = None if access == "open" else self._judge(request, access)
        return await handler(request) if refusal is None else refusal

    def make_code(self, who: Identity) -> str:
        """Return a code that lets a browser in once, within ten minutes, as somebody."""
        return self._sessions.make_code(who, now=self._clock.monotonic())

    def log_in(self, request: web.Request, *, code: str, token: str) -> web.Response:
        """Begin a session for a browser that has a code or, without one, a token.

        Returns:
            An answer that sets the session's cookie, and says what the page must keep and
            show with its requests; or a refusal.
        """
        now = self._clock.monotonic()
        who = self._sessions.redeem(code, now=now) if code else self._find_token(token)
        if who is None or not who.is_valid():
            return self._refuse_wrong(
                request, "open", self._no_such_code() if code else "no such token"
            )
        name = f"{who.name.removesuffix(_IN_BROWSER)}{_IN_BROWSER}"
        cookie, key = self._sessions.begin(replace(who, name=name), now=now)
        answer = web.json_response({"key": key, "name": name, "roles": sorted(who.roles)})
        answer.set_cookie(
            _cookie_name(request),
            cookie,
            path="/",
            max_age=round(SESSION_LIFE_S),
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )
        return answer

    def _judge(self, request: web.Request, access: str) -> web.Response | None:
        """Return why a request is refused, None if it isn't."""
        found = self._ask_who(request)
        known = [each for each in found if isinstance(each, Identity)]
        if known:
            identity = known[0] if len(known) == 1 else _joined(known)
            if identity.roles & _SERVED[access]:
                request[_IDENTITY] = identity
                return None
            who = f"{identity.name} is {' and '.join(sorted(identity.roles))}"
            return self._refuse(request, 403, access, who)
        if access == "read" and self._open_reading:
            return None
        if self._by_token is None and self._by_certificate is None:
            return self._refuse(request, 403, access, _NO_WAY_IN)
        reason = "; ".join(map(str, found)) or "no token"
        if "Authorization" in request.headers or _KEY_HEADER in request.headers:
            return self._refuse_wrong(request, access, reason)
        return self._refuse(request, 401, access, reason)

    def _ask_who(self, request: web.Request) -> list[Identity | str]:
        """Return whom each thing stands for that a request shows, or why for nobody."""
        found: list[Identity | str] = []
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            found.append(self._find_token(token.strip()) or "the token isn't known")
        cookie = request.cookies.get(_cookie_name(request))
        key = request.headers.get(_KEY_HEADER)
        if cookie and key:
            who = self._sessions.find(cookie, key, now=self._clock.monotonic())
            is_valid = who is not None and who.is_valid()
            found.append(who if who is not None and is_valid else "the session has ended")
        if self._by_certificate is not None:
            found.append(self._by_certificate(request))
        return found

    def _find_token(self, token: str) -> Identity | None:
        if self._by_token is None or not 0 < len(token) <= _MAX_TOKEN_LENGTH:
            return None
        return self._by_token(token)

    def _refuse_wrong(self, request: web.Request, access: str, reason: str) -> web.Response:
        """Refuse somebody who showed what isn't known; after some, with fewer words."""
        if not self._attempts.wrong(request.remote or "?", now=self._clock.monotonic()):
            return self._refuse(request, 401, access, reason)
        error = {"code": "too_many_attempts", "message": "wait a minute", "needed": access}
        return web.json_response({"error": error}, status=429, headers={"Retry-After": "60"})

    def _no_such_code(self) -> str:
        command = f"paramfleet page --job {self._job}" if self._job else "paramfleet page"
        return f"the code was used, or is too old: `{command}` makes another"

    def _refuse(
        self, request: web.Request, status: int, access: str, reason: str
    ) -> web.Response:
        path = shortened(printable(request.path, lines=False))
        self._refused.warn(
            peer=request.remote or "?",
            method=request.method,
            path=path,
            needed=access,
            reason=reason,
        )
        word = {401: "unauthenticated", 421: "misdirected"}.get(status, "forbidden")
        asked = f"{request.method} {path}"
        message = (
            f"{asked}: {reason}" if status == 421 else f"{asked} is for {access}: {reason}"
        )
        error = {"code": word, "message": message, "needed": access}
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        return web.json_response({"error": error}, status=status, headers=headers)


GATE = web.AppKey("paramfleet_gate", Gate)
"""The gate of an admin server, for its handlers."""


def gate_of(settings: JobSettings, tls: TlsEnd | None) -> Gate:
    """Return the gate that a process's settings ask for.

    Args:
        settings: Its settings.
        tls: The end that its admin address is served with.

    Raises:
        TokensFileError: if the file of tokens can't be read.
    """
    tokens = _tokens_of(settings)

    def by_token(token: str) -> Identity | None:
        assert tokens is not None, "asked only where there are some"
        entry = tokens.find(token)
        if entry is None:
            return None
        return Identity(
            roles=frozenset({entry.role}),
            name=f"token {entry.name}",
            is_valid=lambda: tokens.has(entry),
        )

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
        hosts=AllowedHosts(_own_hosts(settings), settings.admin_hosts),
        open_reading=settings.admin_open_reading,
        job=settings.job,
    )


def _tokens_of(settings: JobSettings) -> KnownTokens | None:
    """Return the tokens that a process's settings name, or those that its secret stands for.

    Raises:
        TokensFileError: if the file of tokens can't be read.
    """
    if settings.tokens_file:
        names = [name for name in settings.tokens_file.split(os.pathsep) if name]
        return SeveralTokens([Tokens(Path(name)) for name in names])
    if len(settings.secret) < MIN_SECRET_LENGTH:
        return None
    secret, name = JobSecret(settings.secret, settings.job), "of-the-job's-secret"
    return KnownTokens([entry_of(secret.token(role), role, name) for role in ("read", "admin")])


def _own_hosts(settings: JobSettings) -> list[str]:
    """Return the names and addresses of this machine that its process knows."""
    name = socket.gethostname()
    own = [settings.host, getattr(settings, "bind", ""), name, name.partition(".")[0]]
    return [each for each in own if each]


def _joined(known: list[Identity]) -> Identity:
    """Return somebody who showed several things."""
    return Identity(
        roles=frozenset[str]().union(*(each.roles for each in known)),
        name=", ".join(each.name for each in known),
        is_valid=lambda: all(each.is_valid() for each in known),
    )


def _cookie_name(request: web.Request) -> str:
    """Return the name of a session's cookie: browsers send one to every port of a host."""
    port = request.url.port or 0
    return f"__Host-paramfleet-{port}" if request.secure else f"paramfleet-{port}"


def _access_of(handler: Any) -> str | None:
    access = getattr(handler, _MARK, None)
    return access if isinstance(access, str) else None


def _local(request: web.Request) -> str:
    """Return the address of this machine that a request came to; empty if it has none."""
    name = request.transport.get_extra_info("sockname") if request.transport else None
    return str(name[0]) if isinstance(name, tuple) and name else ""


def _is_foreign(request: web.Request) -> bool:
    """Whether a browser asks for a page that isn't ours."""
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != request.host
