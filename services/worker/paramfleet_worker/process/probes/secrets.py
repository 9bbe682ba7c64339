"""What a process's certificate and tokens are, without what must stay secret."""

from pathlib import Path

from paramfleet_shared.net.tls import TlsFiles
from paramfleet_shared.net.tokens import TokensFileError, read_tokens
from paramfleet_worker.core.doctor.facts import CertificateFacts, TokensFacts
from paramfleet_worker.process.authority import has_key
from paramfleet_worker.process.certificates import (
    CertificateFileError,
    fact_of,
    is_signed_by,
    read_certificate,
    read_key,
)

__all__ = ["look_at_certificate", "look_at_tokens"]


def look_at_certificate(files: TlsFiles) -> CertificateFacts:
    """Return what a certificate says, and whether key and authority go with it."""
    missing = [str(path) for path in (files.ca, files.cert, files.key) if not path.exists()]
    if missing:
        return CertificateFacts(path=str(files.cert), missing=tuple(missing))
    try:
        certificate, authority = read_certificate(files.cert), read_certificate(files.ca)
        key = read_key(files.key)
    except CertificateFileError as error:
        return CertificateFacts(path=str(files.cert), unreadable=str(error))
    fact = fact_of(certificate, files.cert)
    return CertificateFacts(
        path=str(files.cert),
        readable_by_others=(str(files.key),) if _is_open(files.key) else (),
        job=fact.job,
        role=fact.role,
        hosts=fact.hosts,
        not_before=fact.not_before,
        not_after=fact.not_after,
        has_its_key=has_key(certificate, key),
        is_of_authority=is_signed_by(certificate, authority),
        authority_ends=authority.not_valid_after_utc,
    )


def look_at_tokens(path: Path) -> TokensFacts:
    """Return what a file of tokens holds."""
    try:
        entries = read_tokens(path)
    except TokensFileError as error:
        return TokensFacts(path=str(path), error=str(error))
    return TokensFacts(path=str(path), roles=tuple(entry.role for entry in entries))


def _is_open(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o077)
