"""Whether what listens at the address of a job's Redis is one."""

import asyncio
import contextlib

from paramfleet_shared.errors import ContractError

__all__ = ["ANSWER_WITHIN_S", "NotRedisError", "require_redis"]

ANSWER_WITHIN_S = 8.0
"""How long a Redis may take that is there; one that loads its data says so at once."""

_ANSWERS = (b"+", b"-")
"""How a Redis begins its answer, also that it asks for a password, or isn't ready."""


class NotRedisError(ContractError):
    """Something else has the port."""

    code = "contract.not_redis"
    where: str
    said: str
    sentence = (
        "--redis: what listens at {where} is no Redis: {said}; name the address of a Redis, or "
        "a free port of this machine, where the launcher starts one"
    )


async def require_redis(host: str, port: int) -> None:
    """Pass if a Redis answers without TLS, or nobody listens: it may come later.

    Raises:
        NotRedisError: if another server answers, or none within ``ANSWER_WITHIN_S``.
    """
    where = f"{host} port {port}"
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port)
    except OSError:  # or TimeoutError
        return
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
