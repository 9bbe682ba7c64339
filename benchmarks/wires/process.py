"""One process of a stack: ``python -m wires.process STACK serve|drive OPTIONS``.

``OPTIONS`` is JSON: ``port`` for a client, ``certificate``, ``key`` and ``mutual`` under
TLS. Both obey JSON lines and answer each with one, until their input ends.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import uvloop

from wires.cases import CASES, DIAL, NUM_DIALS, Ask, Payloads, Tls

__all__ = ["main"]

_WARM_UP_CALLS = 4


async def burst(ask: Ask, case: str, in_flight: int, slowness: float) -> tuple[float, int]:
    """Make a burst's calls; return the seconds that one took, and how many there were.

    Calls to warm up are counted, but not timed.
    """
    num_calls: int = max(in_flight, round(CASES[case].calls * in_flight**0.5 / slowness))
    num_left = num_calls

    async def worker() -> None:
        nonlocal num_left
        while num_left > 0:
            num_left -= 1
            await ask(case)

    for _ in range(_WARM_UP_CALLS):
        await ask(case)
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())
    seconds = time.perf_counter() - start
    return seconds / num_calls, num_calls + _WARM_UP_CALLS


async def dials(dial: Callable[[], Awaitable[None]]) -> tuple[float, int]:
    """Open connections one after the other; return as ``burst`` does."""
    for _ in range(_WARM_UP_CALLS):
        await dial()
    start = time.perf_counter()
    for _ in range(NUM_DIALS):
        await dial()
    return (time.perf_counter() - start) / NUM_DIALS, NUM_DIALS + _WARM_UP_CALLS


async def obey(commands: dict[str, Callable[..., Any]]) -> None:
    """Do what standard input says until it ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        print(json.dumps(await commands[command.pop("do")](**command)), flush=True)


async def main(stack: str, act: str, options: str) -> None:
    """Be the server or the client of a stack."""
    given = json.loads(options)
    tls = None
    if "certificate" in given:
        tls = Tls(Path(given["certificate"]), Path(given["key"]), mutual=given["mutual"])
    wire, payloads = import_module(f"wires.{stack}"), Payloads()
    more = {"secret": given["secret"]} if "secret" in given else {}
    if act == "serve":
        port: int = await wire.serve(payloads, tls, **more)

        async def where() -> int:
            return port

        await obey({"port": where})
    else:
        ask: Ask = await wire.connect(payloads, given["port"], tls, **more)

        async def run(case: str, in_flight: int, slowness: float) -> tuple[float, int]:
            if case == DIAL:
                return await dials(partial(wire.dial, payloads, given["port"], **more))
            return await burst(ask, case, in_flight, slowness)

        await obey({"burst": run})


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
