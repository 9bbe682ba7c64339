"""Whether what listens at the address of a job's Redis is one."""

import asyncio
import contextlib
import os

from paramfleet_shared.errors import ContractError

__all__ = ["ANSWER_WITHIN_S", "NoRedisThereError", "NotRedisError", "require_redis"]

ANSWER_WITHIN_S = 8.0
"""How long a Redis may take that is there; one that loads its data says so at once."""

_RETRY_S = 0.1
"""Seconds between two attempts to reach a Redis that may be starting."""

_ANSWERS = (b"+", b"-")
"""How a Redis begins its answer, also that it asks for a password, or isn't ready."""


class NotRedisError(ContractError):
    """Something else has the port."""

    code = "contract.not_redis"
    where: str
    said: str
    sentence = (
        "--redis: the program that listens at {where} is no Redis: {said}; give the address of "
        "a Redis, or a free port of this machine, where the launcher starts one"
    )


class NoRedisThereError(ContractError):
    """Nothing listens at the address that was given."""

    code = "contract.no_redis_there"
    where: str
    why: str
    sentence = (
        "--redis: there is no Redis at {where}: {why}; start one there, name the address of "
        "another one, or leave --redis out: the launcher then starts one for this job"
    )


async def require_redis(host: str, port: int, *, may_come: bool) -> None:
    """Pass if a Redis answers without TLS, or nobody listens where it may come later.

    Args:
        host: Where it is.
        port: The same.
        may_come: Whether another machine's launcher may start it; else it has
            ``ANSWER_WITHIN_S`` to come.

    Raises:
        NotRedisError: if another server answers, or none within ``ANSWER_WITHIN_S``.
        NoRedisThereError: if nobody listens, and it isn't to come.
    """
    where = f"{host} port {port}"
    try:
        reader, writer = await _connected(host, port, waits=not may_come)
    except OSError as error:  # or TimeoutError
        if may_come:
            return
        raise NoRedisThereError(where=where, why=_why(error)) from error
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            writer.write(b"PING\r\n")
            said = await reader.readline()
    except TimeoutError as error:
        reason = f"it has said nothing for {ANSWER_WITHIN_S:.0f} s"
        raise NotRedisError(where=where, said=reason) from error
    except OSError:
        return
    except ValueError:
        said = b"a line of more than 64 KiB"
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if not said.startswith(_ANSWERS):
        shown = repr(said[:60].decode(errors="backslashreplace").strip())
        raise NotRedisError(where=where, said=f"it answered {shown}" if said else "it hung up")


async def _connected(
    host: str, port: int, *, waits: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, again and again for a while if it ``waits``.

    Raises:
        OSError: as of the last attempt.
    """
    last: OSError | None = None
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            while True:
                try:
                    return await asyncio.open_connection(host, port)
                except OSError as error:
                    if not waits:
                        raise
                    last = error
                await asyncio.sleep(_RETRY_S)
    except TimeoutError as error:
        raise last or error from error


def _why(error: OSError) -> str:
    """Return in words why nobody could be reached."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or f"no answer within {ANSWER_WITHIN_S:g} s"
