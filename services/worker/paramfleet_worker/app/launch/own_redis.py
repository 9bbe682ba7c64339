"""The Redis that a launcher starts for its job."""

import secrets
from pathlib import Path

from redis.exceptions import RedisError

from paramfleet_shared.discovery.redis.access_list import job_rights
from paramfleet_shared.discovery.redis.config import ServedRedis, User
from paramfleet_shared.discovery.redis.serving import LOADER_RIGHTS, load_scripts
from paramfleet_shared.files.job_folder import write_private
from paramfleet_worker.app.launch.preparing import PreparedLaunch

__all__ = ["OwnRedis"]

_LOADER = "loader"


class OwnRedis:
    """Admits only the job's processes, for the commands and keys of the job.

    The job's scripts are given to it by a user whose password only this process knows, and who
    may do nothing else. So no user there can change its settings, load a module or run a
    script of his own.

    Args:
        prepared: The launch; its plan has a Redis to start.
    """

    def __init__(self, prepared: PreparedLaunch) -> None:
        self._prepared = prepared
        self._loader_password = secrets.token_urlsafe()

    def command(self, program: Path) -> list[str]:
        """Return the command that runs it; its settings are in a file of the job's folder.

        Raises:
            OSError: if the file can't be written.
        """
        address, job = self._prepared.plan.redis, self._prepared.job
        assert address is not None, "there is one to start"
        rights, password = job_rights(job.job), self._prepared.redis_password
        folder = self._prepared.folder.path
        config = ServedRedis(
            users=(
                *(
                    User(name=name, password=password, rights=rights)
                    for name in sorted({"default", job.redis_user or "default"})
                ),
                User(name=_LOADER, password=self._loader_password, rights=LOADER_RIGHTS),
            ),
            directory=folder,
            socket=Path(address.socket) if address.socket else None,
            bind=address.host,
            port=address.port,
        )
        file = folder / "redis.conf"
        write_private(file, config.text().encode())
        return [str(program), str(file)]

    async def is_ready(self) -> bool:
        """Give it the job's scripts; return whether it answers already and has taken them."""
        try:
            await load_scripts(
                _without_account(self._prepared.plan.facts.redis),
                user=_LOADER,
                password=self._loader_password,
            )
        except (RedisError, OSError, TimeoutError):
            return False
        return True


def _without_account(url: str) -> str:
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"
