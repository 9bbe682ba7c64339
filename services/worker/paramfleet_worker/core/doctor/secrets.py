"""Checks of certificates and tokens."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from paramfleet_worker.core.doctor.facts import CertificateFacts, Facts
from paramfleet_worker.core.doctor.findings import Finding, failure, warning

__all__ = ["check_certificate", "check_tokens"]

SOON = timedelta(days=14)
RENEW = "`paramfleet certs renew` makes a new one"


def check_certificate(facts: Facts) -> Iterator[Finding]:
    """Check that this process's certificate is what its peers will ask for."""
    own = facts.certificate
    if own is None:
        return
    if own.missing:
        yield failure(
            "certificate-missing",
            ", ".join(own.missing),
            "there is no such file",
            "make it with `paramfleet certs issue`, or correct PARAMFLEET_TLS_DIR",
        )
        return
    if own.unreadable:
        yield failure(
            "certificate-unreadable",
            own.path,
            own.unreadable,
            "make a new one with `paramfleet certs issue`; this user must be able to read it",
        )
        return
    if own.readable_by_others:
        yield failure(
            "certificate-permissions",
            ", ".join(own.readable_by_others),
            "others on this machine may read the key",
            "chmod 600",
        )
    yield from _check_pair(own)
    yield from _check_dates(own, facts.now)
    yield from _check_name(own, facts)


def _check_pair(own: CertificateFacts) -> Iterator[Finding]:
    if not own.has_its_key:
        yield failure(
            "certificate-key-mismatch",
            own.path,
            "the key isn't this certificate's",
            "take both from the same folder, or make new ones with `paramfleet certs renew`",
        )
    if not own.is_of_authority:
        yield failure(
            "certificate-wrong-authority",
            own.path,
            "ca.crt didn't sign this certificate",
            "give all members certificates and ca.crt of one authority",
        )


def _check_dates(own: CertificateFacts, now: datetime) -> Iterator[Finding]:
    first, last = own.not_before, own.not_after
    if last is not None and last <= now:
        yield failure("certificate-expired", own.path, f"it ended at {last}", RENEW)
    elif last is not None and last - now < SOON:
        days = (last - now).days
        yield warning("certificate-expires-soon", own.path, f"it ends in {days} days", RENEW)
    if first is not None and first > now:
        yield failure(
            "certificate-not-yet-valid",
            own.path,
            f"it begins at {first}",
            "set this machine's clock, or that of the machine that made it",
        )
    if own.authority_ends is not None and own.authority_ends - now < SOON:
        yield failure(
            "authority-expires",
            own.path,
            f"its authority ends at {own.authority_ends}",
            "make a new authority with `paramfleet certs init` in an empty folder",
        )


def _check_name(own: CertificateFacts, facts: Facts) -> Iterator[Finding]:
    settings = facts.settings
    if own.role != settings.role:
        yield failure(
            "certificate-wrong-role",
            own.path,
            f"it is for the role {own.role or 'none'}, and this process is {settings.role}",
            f"give it {settings.role}.crt and {settings.role}.key",
        )
    if own.job != settings.job:
        yield failure(
            "certificate-wrong-job",
            own.path,
            f"it is for job {own.job or '(none)'}, and this process is of job {settings.job}",
            f"`paramfleet certs issue --job {settings.job}`, or set PARAMFLEET_JOB",
        )
    if settings.role in {"coordinator", "pserver"} and settings.host not in own.hosts:
        yield warning(
            "certificate-lacks-host",
            own.path,
            f"{settings.host} isn't among its names: browsers and curl won't accept it",
            f"make it with `--host {settings.host}`; members don't need that",
        )


def check_tokens(facts: Facts) -> Iterator[Finding]:
    """Check the file of tokens."""
    tokens = facts.tokens
    if tokens is None:
        return
    if tokens.error:
        yield failure(
            "tokens-unreadable",
            tokens.path,
            tokens.error,
            "make it with `paramfleet tokens new`, or correct PARAMFLEET_TOKENS_FILE",
        )
        return
    if "admin" not in tokens.roles and not facts.settings.has_tls:
        yield warning(
            "tokens-without-admin",
            tokens.path,
            "there is no token of the role admin: nothing can change this job",
            "make one with `paramfleet tokens new --role admin`",
        )
    if not facts.settings.has_tls:
        yield warning(
            "tokens-without-tls",
            tokens.path,
            "tokens cross the network for all to read",
            "make certificates with `paramfleet certs`, and set PARAMFLEET_TLS_DIR",
        )
