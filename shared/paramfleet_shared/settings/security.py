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

    checkpoint_dirs: str = ""
    """Folders below which a pserver saves and loads checkpoints for others, with ':' between
    (os.pathsep), addresses such as s3://bucket/kept among them; symbolic links are resolved.
    Empty is its working folder."""

    redis_user: str = ""
    """User of the registry's access list; empty takes that of the address."""

    redis_password: str = field(default="", metadata={"secret": True})
    """Password of the registry; empty takes that of the address."""

    redis_ca: str = ""
    """File of the authority that signed the registry's certificate, for rediss://; empty
    takes this machine's authorities."""

    tls_dir: str = ""
    """Folder with ca.crt and this role's certificate and key (worker.crt, worker.key), as
    `paramfleet certs` makes it; empty is without TLS."""

    tls_ca: str = ""
    """File of the authority's certificate, where it isn't in tls_dir."""

    tls_cert: str = ""
    """File of this process's certificate, where it isn't in tls_dir."""

    tls_key: str = ""
    """File of this process's key, where it isn't in tls_dir."""

    tokens_file: str = ""
    """Files of the hashes of the tokens that admin addresses accept, as `paramfleet tokens`
    writes them, with ':' between (os.pathsep); empty accepts those that the job's secret stands
    for, if it has one."""

    admin_hosts: str = ""
    """Names, with commas between, by which browsers and programs may ask admin addresses,
    beside this machine's addresses and name; .example.com is every name below it."""

    admin_open_reading: bool = False
    """Let everybody who reaches an admin address read status, metrics and settings there; to
    change something always takes a token or a certificate."""

    runtime_dir: str = ""
    """Folder of what running jobs keep for their owner alone, as secrets and sockets; empty is
    paramfleet-USERID below the temporary folder."""
