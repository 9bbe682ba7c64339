"""A job's certificate authority: makes certificates that stand for roles.

Keys are of the curve P-256. Nothing here reads or writes a file.
"""

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paramfleet_shared.net.tls import MemberName, identity_uri

__all__ = ["Pair", "Request", "has_key", "make_authority", "make_certificate"]

_BACKDATE = timedelta(minutes=5)
"""By which a certificate begins before it is made: clocks differ."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """Return the key as PEM, without a password: the file's mode guards it."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a certificate is to say."""

    name: MemberName
    hosts: tuple[str, ...]
    """Host names and IP addresses of its process, for callers that check them: browsers."""
    start: datetime
    days: float


def make_authority(job: str, *, start: datetime, days: float) -> Pair:
    """Return a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(job, "authority")
    builder = _builder(name, name, key, start=start, days=days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_usage(is_authority=True), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def make_certificate(authority: Pair, request: Request) -> Pair:
    """Return a new key with a certificate that the authority signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    builder = _builder(
        _name(request.name.job, request.name.role),
        issuer.subject,
        key,
        start=request.start,
        days=request.days,
    )
    alternatives: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(identity_uri(request.name)),
        *map(_general_name, request.hosts),
    ]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(
        authority.key.public_key()
    )
    extensions: list[tuple[Any, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(is_authority=False), True),
        (x509.ExtendedKeyUsage(usages), False),
        (x509.SubjectAlternativeName(alternatives), False),
        (authority_id, False),
    ]
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def has_key(certificate: x509.Certificate, key: Any) -> bool:
    """Return whether a private key is a certificate's."""
    encoding = serialization.Encoding.DER
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    own = certificate.public_key().public_bytes(encoding, kind)
    return bool(own == key.public_key().public_bytes(encoding, kind))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    start: datetime,
    days: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATE)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)  # noqa: FBT003 (its signature)
    )


def _name(job: str, role: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"paramfleet {job}"[:64]),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{role} of {job}"[:64]),
        ]
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
