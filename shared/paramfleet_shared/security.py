"""Settings of who may speak to whom; every process of a job has them."""

from dataclasses import dataclass, field

__all__ = ["SecuritySettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SecuritySettings:
    """Passwords, certificates and tokens; without any, the network must be trusted."""

    checkpoint_dirs: str = ""
    """Folders below which a pserver saves and loads checkpoints for others, with ':' between
    (os.pathsep); symbolic links are resolved. Empty is its working folder."""

    redis_user: str = ""
    """User of the registry's access list; empty takes that of the address."""

    redis_password: str = field(default="", metadata={"secret": True})
    """Password of the registry; empty takes that of the address."""

    redis_ca: str = ""
    """File of the authority that signed the registry's certificate, for rediss://; empty
    takes this machine's authorities."""

    tls_dir: str = ""
    """Folder with ca.crt and this role's certificate and key (worker.crt, worker.key), as
    `paramfleet certs` makes it; empty speaks without TLS."""

    tls_ca: str = ""
    """File of the authority's certificate, where it isn't in tls_dir."""

    tls_cert: str = ""
    """File of this process's certificate, where it isn't in tls_dir."""

    tls_key: str = ""
    """File of this process's key, where it isn't in tls_dir."""

    tokens_file: str = ""
    """File of the hashes of the tokens that admin addresses accept, as `paramfleet tokens`
    writes it; empty accepts none."""
