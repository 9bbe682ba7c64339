"""Settings of who may reach a job; every process of a job has them."""

from dataclasses import dataclass, field

__all__ = ["SecuritySettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SecuritySettings:
    """The job's secret, passwords, certificates and tokens."""

    secret: str = field(default="", metadata={"secret": True})
    """What every connection between processes of the job proves to know, the same for all of
    them; `paramfleet launch` makes one for its job. Certificates stand for it."""

    insecure: bool = False
    """Start without secret and certificates all the same: whoever reaches the job's ports can
    read it, change it and end it."""

    launch: str = ""
    """Launch that this process belongs to, as `paramfleet launch` sets it: a coordinator takes
    members of its own launch alone. Empty is taken by any."""

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

    runtime_dir: str = ""
    """Folder of what running jobs keep for their owner alone, as secrets and sockets; empty is
    paramfleet-USERID below the temporary folder."""
