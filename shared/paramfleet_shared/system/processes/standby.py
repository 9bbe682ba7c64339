"""A process that imports a program first, and is told later what to run it with.

Started as ``python -P -m`` with this module's name and that of a program. The program is a
package whose ``__main__`` has a function ``main``, which takes the words of a command line, and
perhaps a function ``prepare``, which is called before. Then the process waits for an order on
its standard input, whose end ends the order; without one the process ends with 0.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["order_of"]


def order_of(words: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """Return the order that lets a standby process run its program.

    Args:
        words: Behind the program's name on its command line.
        environment: All of its environment.
    """
    return json.dumps({"words": list(words), "environment": dict(environment)}).encode()


def _ordered(data: bytes) -> tuple[list[str], dict[str, str]]:
    order: Any = json.loads(data)
    return order["words"], order["environment"]


def main() -> None:
    """Import, wait for the order, and be the program."""
    name = sys.argv[1]
    program = importlib.import_module(f"{name}.__main__")
    getattr(program, "prepare", int)()
    data = sys.stdin.buffer.read()
    if not data:
        return
    words, environment = _ordered(data)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # as behind a gate: the program has no input
    os.close(nothing)
    os.environ.clear()  # noqa: TID251 - the program's own
    os.environ.update(environment)  # noqa: TID251
    sys.argv = [name, *words]
    program.main(words)


if __name__ == "__main__":
    main()
