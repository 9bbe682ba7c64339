"""The token for commands to a launched job, in the job's folder."""

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path

from paramfleet_shared.files.job_folder import JobFolder, write_private
from paramfleet_shared.net.secret import MIN_SECRET_LENGTH, JobSecret
from paramfleet_shared.net.tokens import new_token
from paramfleet_shared.settings.config import JobSettings

__all__ = ["admin_environment", "prepare_admin_token", "token_in"]


def prepare_admin_token(folder: JobFolder) -> None:
    """Make the token of a job whose processes all read this folder; only its hash is theirs.

    Args:
        folder: The job's, claimed.

    Raises:
        OSError: if a file can't be written.
    """
    token, entry = new_token("admin", f"launcher-of-{_user()}")
    write_private(folder.tokens_file, entry.to_line().encode())
    write_private(folder.admin_token_file, token.encode())


def admin_environment(folder: JobFolder, settings: JobSettings) -> Mapping[str, str]:
    """Return the variables by which a job's processes accept its launcher's token.

    Args:
        folder: The job's; without a token in it there are none.
        settings: What the processes read; the tokens of files that it names are accepted, too.
    """
    if not folder.tokens_file.exists():
        return {}
    names = [name for name in settings.tokens_file.split(os.pathsep) if name]
    files = [str(folder.tokens_file), *(str(Path(name).absolute()) for name in names)]
    return {"PARAMFLEET_TOKENS_FILE": os.pathsep.join(files)}


def token_in(folder: JobFolder) -> str:
    """Return the token for commands to a job of this machine: its own, or its secret's.

    Returns:
        Empty if the folder has neither.
    """
    try:
        return folder.admin_token_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        pass
    try:
        secret = folder.secret_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    facts = folder.facts()
    if facts is None or len(secret) < MIN_SECRET_LENGTH:
        return ""
    return JobSecret(secret, facts.job).token("admin")


def _user() -> str:
    """Return the name of this process's user, as one word."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run as a user that has no name
        name = str(os.geteuid())
    return re.sub(r"\s", "-", name)[:32]
