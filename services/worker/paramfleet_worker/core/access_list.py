"""The users that a job needs in Redis, as a file of its access list.

Redis checks the commands inside of scripts, too, so a user has those that the scripts of its
role call, on the keys of its job, and what a connection and ``paramfleet doctor`` need.
"""

from collections.abc import Mapping

__all__ = ["COMMANDS", "REDIS_USERS", "access_list"]

_CONNECTION = ("ping", "hello", "select", "client|setname", "info", "time")
"""Redis 7.0 and before don't know ``CLIENT SETINFO``; redis-py does without it."""

_SCRIPTS = ("eval", "evalsha", "script|load")
_MEMBERS = (
    "exists", "get", "hdel", "hget", "hgetall", "hincrby", "hset", "hsetnx", "pexpire", "pttl",
    "set",
)  # fmt: skip

_COORDINATOR = (
    "del", "lindex", "lrange", "ltrim", "rpush", "sadd", "smembers", "srem",
)  # fmt: skip

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "coordinator": (*_CONNECTION, *_SCRIPTS, *_MEMBERS, *_COORDINATOR),
    "pserver": (*_CONNECTION, *_SCRIPTS, *_MEMBERS),
    "worker": (*_CONNECTION, *_SCRIPTS, *_MEMBERS),
}
"""What each user may run."""

REDIS_USERS = tuple(COMMANDS)


def access_list(job: str, digests: Mapping[str, str]) -> str:
    """Return the file; nobody else gets in.

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
