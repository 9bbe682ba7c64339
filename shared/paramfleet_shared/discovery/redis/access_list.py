"""The users that a job needs in Redis, and what each may run.

Redis checks the commands inside of scripts, too, so a user has those that the scripts of its
role call, on the keys of its job, and what a connection and ``paramfleet doctor`` need. Nobody
may run a script that comes along with the call: scripts are loaded first, and in a Redis that
``paramfleet launch`` starts by its launcher alone.

Members read all keys of the job, and write those alone that hold what members say. What the
coordinator decides, as the plan, the placement and who may go on at a barrier, only it writes.
Redis before 7 can't tell reading from writing: there members may write all keys of the job.
"""

import hashlib
from collections.abc import Mapping

__all__ = [
    "COMMANDS",
    "JOB_COMMANDS",
    "READ_ONLY_SINCE",
    "REDIS_USERS",
    "access_list",
    "job_rights",
    "user_line",
]

READ_ONLY_SINCE = 7
"""The first Redis whose users may have keys that they only read."""

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

_OF_MEMBERS = (
    "epoch", "lives", "launchers", "doctor",
    "[0-9]*:members", "[0-9]*:beats", "[0-9]*:ends", "[0-9]*:facts", "[0-9]*:failure",
)  # fmt: skip
"""What members and their launchers write: that they live, and how they are and ended. The epoch
and the lives they write again for a Redis that has lost them."""

_WRITTEN: Mapping[str, tuple[str, ...]] = {
    "coordinator": ("*",),
    "pserver": _OF_MEMBERS,
    "worker": (*_OF_MEMBERS, "[0-9]*:gather:*"),
}
"""By user: the keys of a job that it writes."""


def access_list(job: str, digests: Mapping[str, str], *, redis: int = READ_ONLY_SINCE) -> str:
    """Return the file; no other user has access.

    Args:
        job: Whose keys they may touch.
        digests: By user, the SHA-256 of its password, in hex.
        redis: The version that reads it: one before 7 knows no keys that are only read.
    """
    lines = ["user default off resetkeys resetchannels -@all"]
    for user, digest in digests.items():
        rights = " ".join(f"+{command}" for command in COMMANDS[user])
        keys = _keys_of(user, job) if redis >= READ_ONLY_SINCE else f"~paramfleet:{job}:*"
        lines.append(f"user {user} on #{digest} {keys} resetchannels -@all {rights}")
    return "\n".join(lines) + "\n"


def _keys_of(user: str, job: str) -> str:
    """Return which keys of a job a user reads and which it writes, as Redis 7 takes them."""
    written = [f"~paramfleet:{job}:{name}" for name in _WRITTEN[user]]
    return " ".join([f"%R~paramfleet:{job}:*", *written])


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
