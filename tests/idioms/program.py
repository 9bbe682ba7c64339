"""A process of a cell: ``python program.py MODE IDIOM``; prints what came of the loop as JSON.

With ``torch`` as the mode it prints the reference, and one more line for each loop that a
record names for a difference; a process with a server's role serves.
"""

import json
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import paramfleet as fleet
from paramfleet_shared.errors import FleetError


def main() -> None:
    """Run one loop in one mode."""
    mode, name = sys.argv[1:]
    if mode != "torch":
        run(lambda: _joined(mode), of="init")
        if fleet.is_server():
            fleet.init_server()
            fleet.run_server()
            return
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.idioms.record import IDIOMS, Differs  # noqa: PLC0415 - a server needs none
    from tests.idioms.rows import load  # noqa: PLC0415
    from tests.idioms.run import Run  # noqa: PLC0415

    load()
    record = IDIOMS[name]
    if mode != "torch":
        run(lambda: record.loop(Run(mode)))
        if mode != "alone":
            signal.pause()  # until all workers have said it, and are ended
        return
    run(lambda: record.loop(Run("torch")))
    others = [each.equals for each in record.cells.values() if isinstance(each, Differs)]
    for other in filter(None, dict.fromkeys(others)):
        run(partial(other, Run("torch")), of=other.__name__)


def _joined(mode: str) -> dict[str, Any]:
    fleet.init(is_collective=mode == "collective")
    if fleet.is_worker():
        fleet.barrier_worker()  # one that joins after another's refusal finds no job any more
    return {}


def run(loop: Callable[[], Mapping[str, Any]], *, of: str = "") -> None:
    """Run a loop, and print its numbers or its error.

    Raises:
        FleetError: what it raised.
        Exception: what it raised.
    """
    torch.manual_seed(0)
    said: dict[str, Any]
    try:
        said = {"numbers": loop(), "of": of}
    except FleetError as error:
        say({"refused": error.code, "text": str(error)})
        raise
    except BaseException as error:
        where = traceback.format_exc(limit=-3)
        say({"raised": type(error).__name__, "text": str(error), "where": where})
        raise
    say(said)


def say(what: Mapping[str, Any]) -> None:
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
