"""Appends to a log until it is killed, and prints its durable position and its state."""

import asyncio
import sys
from pathlib import Path

from paramfleet_pserver.durability.log.recovery import open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_shared.system.clock import SystemClock

JOB = "killed"


def command(position: int) -> bytes:
    """Return the command of a position: of some bytes, now and then of many."""
    size = 40_000 if position % 50 == 0 else 1 + position * 7919 % 300
    return (b"%d:" % position) * (1 + size // 8)


async def main(path: Path) -> None:
    log = open_log(path, job=JOB)
    settings = LogSettings(segment_bytes=256 << 10, batch_bytes=16 << 10, sync_every_s=0.001)
    writer = log.continue_with(term=log.term + 1, clock=SystemClock(), settings=settings)
    writer.start(lambda: print(writer.durable_position, writer.state, flush=True))
    while True:
        for _ in range(20):
            if writer.waiting_bytes < 1 << 20:
                writer.append(command(writer.position + 1))
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
