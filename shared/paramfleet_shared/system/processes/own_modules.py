"""The command that runs one of our own modules in a process of its own."""

import sys

__all__ = ["OF_OURS", "module_command"]

OF_OURS = ("-P", "-m")
"""What the interpreter is given before the module. Without ``-P`` it would import from the
working folder first: where others may write to it, as in /tmp, a file of theirs would run."""


def module_command(module: str, *words: str) -> list[str]:
    """Return a command of this interpreter.

    Args:
        module: By its full name.
        words: Its arguments.
    """
    return [sys.executable, *OF_OURS, module, *words]
