"""The users that a job needs in Redis, and what each may run.

Redis checks the commands inside of scripts, too, so a user has those that the scripts of its
role call, on the keys of its job, and what a connection and ``paramfleet doctor`` need. Nobody
may run a script that comes along with the call: scripts are loaded first, and in a Redis that
``paramfleet launch`` starts by its launcher alone.
"""

import hashlib
from collections.abc import Mapping

__all__ = ["COMMANDS", "JOB_COMMANDS", "REDIS_USERS", "access_list", "job_rights", "user_line"]

_CONNECTION = ("ping", "hello", "select", "client|setname", "info", "time")
"""Redis 7.0 and before don't know ``CLIENT SETINFO``; redis-py does without it."""

_MEMBERS = (
    "evalsha",
    "exists", "get", "hdel", "hget", "hgetall", "hincrby", "hset", "hsetnx", "pexpire", "pttl",
    "set",
)  # fmt: skip

_COORDINATOR = (
    "del", "lindex", "lrange", "ltrim", "rpush", "sadd", "smembers", "srem",
)  # fmt: skip

_LOAD = "script|load"

JOB_COMMANDS = (*_CONNECTION, *_MEMBERS, *_COORDINATOR)
"""What a job's processes may run in a Redis that has their scripts."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "coordinator": (*JOB_COMMANDS, _LOAD),
    "pserver": (*_CONNECTION, *_MEMBERS, _LOAD),
    "worker": (*_CONNECTION, *_MEMBERS, _LOAD),
}
"""What each user may run where the scripts aren't loaded before."""

REDIS_USERS = tuple(COMMANDS)


def access_list(job: str, digests: Mapping[str, str]) -> str:
    """Return the file; no other user has access.

    Args:
        job: Whose keys they may touch.
        digests: By user, the SHA-256 of its password, in hex.
    """
    lines = ["user default off resetkeys resetchannels -@all"]
    for user, digest in digests.items():
        rights = " ".join(f"+{command}" for command in COMMANDS[user])
        keys = f"~paramfleet:{job}:*"
        lines.append(f"user {user} on #{digest} {keys} resetchannels -@all {rights}")
    return "\n".join(lines) + "\n"


def job_rights(job: str) -> str:
    """Return what the processes of a job may do in a Redis of its own; ``*`` is any job."""
    return f"~paramfleet:{job}:* -@all " + " ".join(f"+{command}" for command in JOB_COMMANDS)


def user_line(name: str, password: str, rights: str) -> str:
    """Return a user as a line of a configuration; the password isn't in it.

    Args:
        name: The user's name.
        password: Empty gives access to everybody.
        rights: Keys and commands, as Redis writes them.
    """
    digest = hashlib.sha256(password.encode()).hexdigest()
    return f"user {name} on {'#' + digest if password else 'nopass'} {rights}"
