"""The secret of a job, which only its processes know.

Every process of a job gets the same secret, as ``PARAMFLEET_SECRET_FILE``; ``paramfleet
launch`` makes one for its job. It never travels: each connection proves it by an HMAC over
fresh random numbers of both ends (``rpc.connection.proof``). Certificates stand for it
where there are any, because they prove more: the role.
"""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.visibility import open_mode
from paramfleet_shared.settings.config import JobSettings, SettingError
from paramfleet_shared.values.texts import printable, shortened

__all__ = [
    "MIN_SECRET_LENGTH",
    "JobSecret",
    "OpenJobError",
    "SecretExistsError",
    "new_secret",
    "open_warnings",
    "secret_of",
    "write_secret",
]

MIN_SECRET_LENGTH = 32
"""Characters of the shortest secret that is taken."""

_NUM_BYTES = 32


class SecretExistsError(ContractError):
    """There is a file already where a new secret is to be."""

    code = "contract.secret_exists"
    path: str
    sentence = "{path} is there already, and a job may use it: name another file, or remove it"


class OpenJobError(ContractError):
    """A process would serve whoever reaches it: it has neither certificates nor a secret."""

    code = "contract.open_job"
    job: str
    sentence = (
        "job {job} has neither certificates nor a secret, so everyone who can reach its ports "
        "could control it: give each of its processes the same file in PARAMFLEET_SECRET_FILE "
        "(`paramfleet secret FILE` makes one), or certificates in PARAMFLEET_TLS_DIR "
        "(`paramfleet certs init`), or set PARAMFLEET_INSECURE=true if everyone who can reach "
        "the network is trusted"
    )


@dataclass(frozen=True, slots=True)
class JobSecret:
    """Keys made of a job's secret, each for one use alone."""

    text: str = field(repr=False)
    job: str

    def key(self, use: str) -> bytes:
        """Return the key for a use, 32 bytes; keys of different uses say nothing of another."""
        label = f"paramfleet/1 {use} of {self.job}".encode()
        return hmac.digest(self.text.encode(), label, hashlib.sha256)

    @property
    def redis_password(self) -> str:
        """Return the password of a Redis that the job's launcher starts."""
        return self.key("redis password").hex()

    def token(self, role: Literal["read", "admin"]) -> str:
        """Return the token of admin addresses that the secret stands for.

        Whoever has the secret may read and control the job, where no file of tokens says
        otherwise.
        """
        key = base64.urlsafe_b64encode(self.key(f"{role} token")).rstrip(b"=").decode()
        return f"pf-{role}-{key}"


def new_secret() -> str:
    """Return a new secret, as text."""
    return secrets.token_urlsafe(_NUM_BYTES)


def write_secret(path: Path, text: str) -> None:
    """Write a secret into a new file of mode 0600.

    Raises:
        SecretExistsError: if the file is there already.
        OSError: if it can't be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise SecretExistsError(path=str(path)) from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


def secret_of(settings: JobSettings) -> JobSecret | None:
    """Return what a process's connections must prove by its settings.

    Returns:
        None where certificates stand for the secret, or nothing is asked for.

    Raises:
        OpenJobError: if there is neither, and the settings don't say that this is wanted.
        SettingError: if the secret is too short to be one.
    """
    if settings.tls_dir or settings.tls_cert:
        return None
    if not settings.secret:
        if settings.insecure:
            return None
        raise OpenJobError(job=settings.job)
    if len(settings.secret) < MIN_SECRET_LENGTH:
        rule = f"at least {MIN_SECRET_LENGTH} characters; `paramfleet secret FILE` makes one"
        raise SettingError(name="secret", value="***", rule=rule)
    return JobSecret(settings.secret, settings.job)


def open_warnings(
    origins: Mapping[str, str], settings: JobSettings, environment: Mapping[str, str]
) -> list[str]:
    """Return what a process's own settings leave open, in a sentence each.

    Args:
        origins: Where each setting came from.
        settings: The settings.
        environment: Names the files of secrets.
    """
    found = []
    if settings.insecure and not (settings.secret or settings.tls_dir or settings.tls_cert):
        found.append(
            f"job {settings.job} runs without secret and certificates (insecure): everyone "
            "who can reach its ports can read, change and end it"
        )
    if origins.get("redis") == "argument" and urlsplit(settings.redis).password:
        found.append(
            "the password in --redis is on a command line, where every user of this machine "
            "sees it: leave it out there, and name a file that holds it in "
            "PARAMFLEET_REDIS_PASSWORD_FILE"
        )
    if not settings.launch:  # else the launcher has said it
        found += _open_files(origins, settings, environment)
    return found


def _open_files(
    origins: Mapping[str, str], settings: JobSettings, environment: Mapping[str, str]
) -> Iterator[str]:
    for each in fields(settings):
        variable = origins.get(each.name, "").removeprefix("environment ")
        if not each.metadata.get("secret") or not variable.endswith("_FILE"):
            continue
        path = environment[variable]
        mode = open_mode(Path(path))
        if mode is not None:
            shown = shortened(printable(path))
            yield f"others may read {variable}, {shown} (mode {mode:o}): chmod 600"
