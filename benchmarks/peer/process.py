"""One process of a system: ``python -m peer.process serve|drive SYSTEM WORK ADDRESS``.

``SYSTEM`` is a module beside this one; ``WORK`` and ``ADDRESS`` are JSON: fields of
``Work`` and arguments of the module's ``serve`` and ``driver`` or ``connect``. A server
serves until its input ends or its client leaves. A client reads one JSON command a line
and answers each with one JSON line; at the end of its input it leaves its server.
"""

import json
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from peer.work import Client, Stepper, Work, digest_of, fill

__all__ = ["main"]


class Driver:
    """A client's commands, by their names.

    Args:
        client: Connected.
        work: What a step is.
    """

    def __init__(self, client: Client, work: Work) -> None:
        self._client = client
        self._work = work
        self._stepper: Stepper | None = None

    def fill(self) -> None:
        """Give the table its first content."""
        fill(self._client, self._work)
        self._stepper = Stepper(self._client, self._work)

    def burst(self, steps: int, in_flight: int) -> dict[str, Any]:
        """Run steps; returns the fields of a ``Burst``."""
        assert self._stepper is not None, "filled"
        return dict(self._stepper.burst(steps, in_flight)._asdict())

    def digest(self) -> str:
        """Return the digest of the whole table."""
        return digest_of(self._client, self._work)

    def close(self) -> None:
        """Leave the server."""
        self._client.close()


def drive(system: ModuleType, work: Work, address: dict[str, Any]) -> None:
    """Obey until the input ends."""
    make = getattr(system, "driver", None)
    driver = make(work, **address) if make else Driver(system.connect(work, **address), work)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(driver, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)
    driver.close()


def main(act: str, system: str, work: str, address: str) -> None:
    """Be the server or the client of a system."""
    module = import_module(f"peer.{system}")
    if act == "serve":
        module.serve(Work(**json.loads(work)), **json.loads(address))
    else:
        drive(module, Work(**json.loads(work)), json.loads(address))


if __name__ == "__main__":
    main(*sys.argv[1:])
