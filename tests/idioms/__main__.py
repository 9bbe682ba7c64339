"""``python -m tests.idioms [PATTERN]``: measure idioms, and print what came of each cell."""

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.idioms.measurement import measure, verdict
from tests.idioms.record import IDIOMS, MODES, Mode
from tests.idioms.rows import load
from tests.processes.training.conftest import JobRunner, Programs

from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.process.prepared.running import PreparedProcess


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.idioms", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="Of names of idioms.")
    parser.add_argument("--modes", default=",".join(MODES), help="Of the cells that run.")
    parser.add_argument("--long", action="store_true", help="Print whole errors.")
    options = parser.parse_args()
    load()
    modes: list[Mode] = [mode for mode in MODES if mode in options.modes.split(",")]
    wrong = 0
    with _jobs() as jobs:
        for name, record in IDIOMS.items():
            if not re.search(options.pattern, name):
                continue
            print(f"{name}: {record.title}", flush=True)
            for mode, measured in measure(record, jobs, modes).items():
                problem = verdict(record.cell(mode), measured, bound=record.bound)
                wrong += bool(problem)
                text = measured.text if options.long else measured.text.partition("\n")[0]
                print(f"    {'WRONG' if problem else 'right'} {mode}: {text}", flush=True)
    print(f"{wrong} wrong")
    return int(bool(wrong))


@contextlib.contextmanager
def _jobs() -> Iterator[JobRunner]:
    """Start what jobs need, and yield what starts them."""
    folder = Path(tempfile.mkdtemp(prefix="paramfleet-idioms-"))
    (folder / "redis").mkdir()
    redis = EmbeddedRedis(folder / "redis", clock=SystemClock())
    asyncio.run(redis.start())
    prepared = PreparedProcess(folder=Path(__file__).parents[2])
    try:
        with contextlib.closing(prepared), prepared.prepared.starting():
            yield JobRunner(Programs(), redis.url, folder.name, folder)
    finally:
        redis.stop()


if __name__ == "__main__":
    sys.exit(main())
