"""The files of ``paramfleet certs``: an authority's folder, and what it has issued.

``ca.crt`` and ``ca.key`` are the authority, ``<role>.crt`` and ``<role>.key`` a role's. All
are written whole or not at all, with mode 0600. A process needs ``ca.crt`` and its own two
files; ``ca.key`` stays where certificates are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256

from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.job_folder import write_private
from paramfleet_shared.net.tls import MemberName, member_of
from paramfleet_worker.process.authority import Pair, Request, has_key, make_authority
from paramfleet_worker.process.authority import make_certificate as _make_certificate

__all__ = [
    "AUTHORITY_DAYS",
    "ROLES",
    "Authority",
    "CertificateFact",
    "CertificateFileError",
    "fact_of",
    "is_signed_by",
    "read_certificate",
    "read_key",
]

ROLES = ("coordinator", "pserver", "worker", "admin", "serving", "redis")
"""Whom certificates are made for; that of ``redis`` is for the registry's own TLS."""

AUTHORITY_DAYS = 3650.0

DAYS = 365.0

RENEW_SHARE = 1 / 3
"""Share of its days at whose begin a certificate is renewed without being asked to."""


class CertificateFileError(ContractError):
    """A file of certificates isn't there, or isn't what it should be."""

    code = "contract.certificate_file"
    path: str
    reason: str
    sentence = "{path}: {reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateFact:
    """What a certificate says, without its secrets."""

    path: str
    job: str
    """Empty for an authority's."""
    role: str
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    issuer: str
    fingerprint: str
    """SHA-256, in hex."""


class Authority:
    """A folder with an authority.

    Args:
        folder: Made by ``init`` where it isn't there.
        now: The time that certificates are made at.
    """

    def __init__(self, folder: Path, *, now: datetime | None = None) -> None:
        self._folder = folder
        self._now = now or datetime.now(UTC)

    def init(self, job: str, *, days: float = AUTHORITY_DAYS) -> bool:
        """Make an authority unless there is one.

        Returns:
            Whether it was made now.

        Raises:
            CertificateFileError: if only half of one is there.
            OSError: if it can't be written.
        """
        present = [name for name in ("ca.crt", "ca.key") if (self._folder / name).exists()]
        if len(present) == 2:
            return False
        if present:
            path, reason = (
                str(self._folder / present[0]),
                "the other half of the pair is missing",
            )
            raise CertificateFileError(path=path, reason=reason)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._write("ca", make_authority(job, start=self._now, days=days))
        return True

    def issue(self, name: MemberName, *, hosts: Sequence[str] = (), days: float = DAYS) -> bool:
        """Make a role's certificate, unless there is one that says the same and lasts.

        Returns:
            Whether it was made now.

        Raises:
            CertificateFileError: if there is no authority, or a file isn't what it should be.
            OSError: if it can't be written.
        """
        authority = self._read("ca")
        if self._lasts(name, hosts=hosts, authority=authority):
            return False
        request = Request(name=name, hosts=tuple(hosts), start=self._now, days=days)
        self._write(name.role, _make_certificate(authority, request))
        return True

    def renew(self, *, days: float = DAYS) -> list[str]:
        """Make every role's certificate anew, with the same names.

        Returns:
            The roles.

        Raises:
            CertificateFileError: if there is no authority, or a file isn't what it should be.
            OSError: if one can't be written.
        """
        authority = self._read("ca")
        renewed = []
        for fact in self.show():
            if fact.role in ROLES:
                name = MemberName(fact.job, fact.role)
                request = Request(name=name, hosts=fact.hosts, start=self._now, days=days)
                self._write(fact.role, _make_certificate(authority, request))
                renewed.append(fact.role)
        return renewed

    def show(self) -> list[CertificateFact]:
        """Return what the folder's certificates say, the authority's first.

        Raises:
            CertificateFileError: if there is none, or a file isn't a certificate.
        """
        found = [self._folder / "ca.crt", *(self._folder / f"{role}.crt" for role in ROLES)]
        facts = [fact_of(read_certificate(path), path) for path in found if path.exists()]
        if not facts:
            reason = "no certificates here; make them with `paramfleet certs init`"
            raise CertificateFileError(path=str(self._folder), reason=reason)
        return facts

    def _lasts(self, name: MemberName, *, hosts: Sequence[str], authority: Pair) -> bool:
        path = self._folder / f"{name.role}.crt"
        if not path.exists() or not path.with_suffix(".key").exists():
            return False
        pair = self._read(name.role)
        fact = fact_of(pair.certificate, path)
        life = fact.not_after - fact.not_before
        return (
            (fact.job, fact.role) == (name.job, name.role)
            and set(hosts) <= set(fact.hosts)
            and fact.not_after - self._now > life * RENEW_SHARE
            and is_signed_by(pair.certificate, authority.certificate)
        )

    def _read(self, stem: str) -> Pair:
        path = self._folder / f"{stem}.crt"
        certificate = read_certificate(path)
        key: Any = read_key(path.with_suffix(".key"))
        if not has_key(certificate, key):
            raise CertificateFileError(
                path=str(path), reason=f"the key in {stem}.key isn't this certificate's"
            )
        return Pair(certificate, key)

    def _write(self, stem: str, pair: Pair) -> None:
        write_private(self._folder / f"{stem}.key", pair.key_pem)
        write_private(self._folder / f"{stem}.crt", pair.certificate_pem)


def read_certificate(path: Path) -> x509.Certificate:
    """Return the certificate in a PEM file.

    Raises:
        CertificateFileError: if there is none.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError as error:
        raise CertificateFileError(path=str(path), reason="there is no such file") from error
    except (OSError, ValueError) as error:
        reason = f"can't be read as a certificate: {error}"
        raise CertificateFileError(path=str(path), reason=reason) from error


def read_key(path: Path) -> Any:
    """Return the private key in a PEM file.

    Raises:
        CertificateFileError: if there is none.
    """
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError as error:
        raise CertificateFileError(path=str(path), reason="there is no such file") from error
    except (OSError, ValueError, TypeError) as error:
        reason = f"can't be read as a key: {type(error).__name__}"  # no word of what is in it
        raise CertificateFileError(path=str(path), reason=reason) from error


def fact_of(certificate: x509.Certificate, path: Path) -> CertificateFact:
    """Return what a certificate says."""
    hosts, uris = _alternatives(certificate)
    name = member_of({"subjectAltName": [("URI", uri) for uri in uris]})
    return CertificateFact(
        path=str(path),
        job=name.job if name else "",
        role=name.role if name else "authority" if _is_authority(certificate) else "",
        hosts=hosts,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        issuer=certificate.issuer.rfc4514_string(),
        fingerprint=certificate.fingerprint(SHA256()).hex(),
    )


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether an authority signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _alternatives(certificate: x509.Certificate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return hosts and URIs."""
    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return (), ()
    hosts = [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]
    return tuple(hosts), tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False
