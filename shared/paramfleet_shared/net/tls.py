"""Mutual TLS: whom a certificate stands for, and the contexts of both ends.

A certificate names a job and a role in a URI, ``paramfleet://job/<job>/role/<role>``, and
that is what is checked: members come and go on any host, so a host's name says nothing.

A server completes the handshake with callers whose certificate is missing or has expired,
because only then can it send them the reason of the refusal. A certificate that another
authority signed ends the handshake.

The files are read again when they have changed: new connections use what is there now.
"""

import logging
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, final

from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.config import JobSettings

__all__ = [
    "MEMBER_ROLES",
    "CertificateFilesError",
    "MemberName",
    "PeerRefusedError",
    "Tls",
    "TlsEnd",
    "TlsFiles",
    "files_of",
    "identity_uri",
    "member_of",
    "tls_of",
]

log = logging.getLogger(__name__)

MEMBER_ROLES = ("admin", "coordinator", "pserver", "serving", "worker")
"""Roles of certificates that a job accepts."""

_URI = re.compile(r"paramfleet://job/(?P<job>[A-Za-z0-9_.-]{1,128})/role/(?P<role>[a-z]{1,32})")

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: a server looks at the dates itself."""

_DATE = "%b %d %H:%M:%S %Y GMT"


class CertificateFilesError(ContractError):
    """The certificate, key and authority that the settings name can't be used."""

    code = "contract.certificate_files"
    files: str
    reason: str
    sentence = (
        "can't use the certificates {files}: {reason}; `paramfleet certs issue` makes "
        "them, `paramfleet doctor` says what is wrong"
    )


class PeerRefusedError(ContractError):
    """A peer's certificate isn't what it must be."""

    code = "contract.peer_refused"
    peer: str
    endpoint: str
    reason: str
    sentence = "no connection to {peer} at {endpoint}: {reason}"


@dataclass(frozen=True, slots=True)
class MemberName:
    """Whom a certificate stands for."""

    job: str
    role: str


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a process's certificate is, all as PEM."""

    ca: Path
    cert: Path
    key: Path

    def __str__(self) -> str:
        return f"{self.cert}, {self.key} and {self.ca}"


def identity_uri(name: MemberName) -> str:
    """Return the URI that a certificate of a job's role has among its alternative names."""
    return f"paramfleet://job/{name.job}/role/{name.role}"


def member_of(certificate: Mapping[str, Any]) -> MemberName | None:
    """Return whom a certificate (``SSLSocket.getpeercert()``) stands for, None for nobody."""
    for kind, value in certificate.get("subjectAltName", ()):
        match = _URI.fullmatch(value) if kind == "URI" else None
        if match is not None:
            return MemberName(match["job"], match["role"])
    return None


def files_of(settings: JobSettings, role: str) -> TlsFiles | None:
    """Return where a role's certificate is by its settings; None where they name none."""
    folder = Path(settings.tls_dir)
    files = TlsFiles(
        ca=Path(settings.tls_ca or folder / "ca.crt"),
        cert=Path(settings.tls_cert or folder / f"{role}.crt"),
        key=Path(settings.tls_key or folder / f"{role}.key"),
    )
    return files if settings.tls_dir or settings.tls_cert else None


def tls_of(settings: JobSettings, role: str) -> "Tls | None":
    """Return the certificate that a process of a role has by its settings.

    Returns:
        None where the settings name none.

    Raises:
        CertificateFilesError: if it can't be used.
    """
    files = files_of(settings, role)
    return None if files is None else Tls(files, job=settings.job)


@final
class Tls:
    """A process's certificate.

    Args:
        files: Where it is.
        job: Whose members are spoken to.
        now: The time, for certificates' dates.

    Raises:
        CertificateFilesError: if the files can't be used.
    """

    def __init__(
        self,
        files: TlsFiles,
        *,
        job: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._files = files
        self._job = job
        self._now = now
        self._stamp = _stamp_of(files)
        self._contexts = self._load()

    def accepts(self, *roles: str, protocol: str = "h2") -> "TlsEnd":
        """Return the end that serves members of ``roles``, over HTTP/2 or ``http/1.1``."""
        return _MembersEnd(self, roles=frozenset(roles), is_server=True, protocol=protocol)

    def expects(self, *roles: str, protocol: str = "h2") -> "TlsEnd":
        """Return the end that asks a member of ``roles``, over HTTP/2 or ``http/1.1``."""
        return _MembersEnd(self, roles=frozenset(roles), is_server=False, protocol=protocol)

    def context(self, *, is_server: bool, protocol: str) -> ssl.SSLContext:
        """Return the context for one new connection; of the files as they are now.

        New files that can't be used are logged, and the former ones go on.
        """
        stamp = _stamp_of(self._files)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._contexts = self._load()
            except CertificateFilesError as error:
                log.warning("tls.not_reloaded", extra={"reason": str(error)})
            else:
                log.info("tls.reloaded", extra={"certificate": str(self._files.cert)})
        return self._contexts[is_server, protocol]

    def refusal(self, certificate: Mapping[str, Any] | None, roles: frozenset[str]) -> str:
        """Return why a peer with a certificate isn't spoken to; empty if it is.

        Args:
            certificate: ``getpeercert()``; None or empty without one.
            roles: Whom it may stand for.
        """
        wanted = f"a certificate of {' or '.join(sorted(roles))} of job {self._job}"
        if not certificate:
            return f"no certificate; needed is {wanted}"
        name = member_of(certificate)
        if name is None:
            return f"a certificate of no job; needed is {wanted}"
        if name.job != self._job:
            return f"a certificate of job {name.job}; needed is {wanted}"
        if name.role not in roles:
            return f"a certificate of {name.role}; needed is {wanted}"
        return self._wrong_time(certificate)

    def _wrong_time(self, certificate: Mapping[str, Any]) -> str:
        now = self._now()
        first, last = _date_of(certificate["notBefore"]), _date_of(certificate["notAfter"])
        if last <= now:
            return f"its certificate expired at {last.isoformat()}"
        if first > now:
            return f"its certificate is valid only from {first.isoformat()}"
        return ""

    def _load(self) -> dict[tuple[bool, str], ssl.SSLContext]:
        return {
            (is_server, protocol): self._make_context(is_server=is_server, protocol=protocol)
            for is_server in (True, False)
            for protocol in ("h2", "http/1.1")
        }

    def _make_context(self, *, is_server: bool, protocol: str) -> ssl.SSLContext:
        """Return a new context.

        Raises:
            CertificateFilesError: if the files can't be used.
        """
        kind = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(kind)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_OPTIONAL if is_server else ssl.CERT_REQUIRED
        if is_server:
            context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
            context.num_tickets = 0
        files = self._files
        try:
            context.load_verify_locations(files.ca)
            context.load_cert_chain(files.cert, files.key, password=_no_password)
        except (OSError, ValueError) as error:
            reason = str(error)
            if isinstance(error, FileNotFoundError):
                missing = [str(p) for p in (files.ca, files.cert, files.key) if not p.exists()]
                reason = f"missing: {', '.join(missing)}"
            raise CertificateFilesError(files=str(files), reason=reason) from error
        context.set_alpn_protocols([protocol])
        return context


class TlsEnd(Protocol):
    """One end of connections: whose certificate is shown, and whose is asked for."""

    def context(self) -> ssl.SSLContext:
        """Return the context for one new connection, with its protocol agreed on (ALPN)."""
        ...

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Return why a peer with a certificate isn't spoken to; empty if it is."""
        ...

    def role_of(self, certificate: Mapping[str, Any] | None) -> str:
        """Return which role a peer has that is spoken to."""
        ...


@dataclass(frozen=True, slots=True)
class _MembersEnd:
    """Shows a member's certificate, and asks for those of some roles."""

    tls: Tls
    roles: frozenset[str]
    is_server: bool
    protocol: str

    def context(self) -> ssl.SSLContext:
        """Return the context for one new connection."""
        return self.tls.context(is_server=self.is_server, protocol=self.protocol)

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Return why a peer with a certificate isn't spoken to; empty if it is."""
        return self.tls.refusal(certificate, self.roles)

    def role_of(self, certificate: Mapping[str, Any] | None) -> str:
        """Return which role a peer has that is spoken to."""
        name = member_of(certificate or {})
        assert name is not None, "who has none is refused"
        return name.role


def _date_of(text: str) -> datetime:
    return datetime.strptime(text, _DATE).replace(tzinfo=UTC)


def _stamp_of(files: TlsFiles) -> tuple[object, ...]:
    """Return what changes when the files are written."""
    stamp: list[object] = []
    for path in (files.ca, files.cert, files.key):
        try:
            fact = path.stat()
            stamp.append((fact.st_mtime_ns, fact.st_size, fact.st_ino))
        except OSError:
            stamp.append(None)
    return tuple(stamp)


def _no_password() -> str:
    """Keep OpenSSL from asking a terminal for the password of a locked key."""
    return ""
