"""Settings of who may reach a job; every process of a job has them."""

from dataclasses import dataclass, field

__all__ = ["SecuritySettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SecuritySettings:
    """The job's secret, passwords, certificates and tokens."""

    secret: str = field(default="", metadata={"secret": True})
    """Secret that all processes of the job share; every connection must prove that it knows it.
    `paramfleet launch` creates one for its job. With certificates it isn't needed."""

    insecure: bool = False
    """Start without a secret and without certificates. Everyone who can reach the job's ports
    can then read, change and end the job."""

    checkpoint_dirs: str = ""
    """Folders in which a pserver may save and load checkpoints, separated by ':' (os.pathsep).
    Addresses such as s3://bucket/kept are possible; symbolic links are resolved. By default
    the working folder."""

    redis_user: str = ""
    """User name for Redis; by default the one in the address."""

    redis_password: str = field(default="", metadata={"secret": True})
    """Password for Redis; by default the one in the address."""

    redis_ca: str = ""
    """For rediss://: certificate file of the authority that signed Redis's certificate; by
    default this machine's authorities."""

    tls_dir: str = ""
    """Folder that `paramfleet certs` wrote, with ca.crt and this role's certificate and key
    (worker.crt, worker.key). By default there is no TLS."""

    tls_ca: str = ""
    """Certificate file of the authority, if it isn't in tls_dir."""

    tls_cert: str = ""
    """Certificate file of this process, if it isn't in tls_dir."""

    tls_key: str = ""
    """Key file of this process, if it isn't in tls_dir."""

    tokens_file: str = ""
    """Files that `paramfleet tokens` wrote, separated by ':' (os.pathsep), with the hashes of
    the tokens that admin addresses accept. By default they accept the tokens that follow from
    the job's secret, if it has one."""

    admin_hosts: str = ""
    """Further host names, separated by commas, under which browsers and programs may use admin
    addresses. This machine's addresses and name are always allowed; .example.com allows every
    name that ends with it."""

    admin_open_reading: bool = False
    """Allow everyone who can reach an admin address to read status, metrics and settings.
    Changes always need a token or a certificate."""

    runtime_dir: str = ""
    """Folder for private files of running jobs, such as secrets and sockets; by default
    paramfleet-USERID in the temporary folder."""
