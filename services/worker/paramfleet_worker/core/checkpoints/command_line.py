"""The command that launches a job again, from a checkpoint."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["RESUME_FROM", "CommandLine"]

RESUME_FROM = "PARAMFLEET_WORKER__RESUME_FROM"
"""The variable that names the checkpoint to a job's processes."""

_OF_PROCESSES = ("PARAMFLEET_COORDINATOR__", "PARAMFLEET_PSERVER__", "PARAMFLEET_WORKER__")
"""Begins of variables that are settings of a job's processes."""

_SECRET = re.compile(
    r"(?=-|.*=)[\w.-]*(pass(word|wd|phrase)?|pwd|secret|token|credential|(api|access|private)"
    r"[_-]?key)s?(=|$)",
    re.IGNORECASE,
)
"""An option's name, with its value or before it, or a setting."""

_MOST_CHARACTERS = 1000
"""Of a command that is shown whole."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The words of a launch, without the program's name; none if they aren't known."""

    options: tuple[str, ...] = ()
    """What stands before the script; ``launch`` is the first word."""
    rest: tuple[str, ...] = ()
    """The script and its arguments."""
    variables: tuple[str, ...] = ()
    """Names of variables in its environment that are settings of the job's processes."""

    @classmethod
    def of(
        cls, words: tuple[str, ...], rest: tuple[str, ...], environment: Mapping[str, str]
    ) -> "CommandLine":
        """Return the command line of this process, if a user has typed it.

        Args:
            words: All of them, without the program's name.
            rest: The script and its arguments, as they were found in them.
            environment: This process's.
        """
        variables = tuple(
            sorted(
                name
                for name, value in environment.items()
                if name.startswith(_OF_PROCESSES) and value and name != RESUME_FROM
            )
        )
        num = len(words) - len(rest)
        if words[:1] != ("launch",) or words[num:] != rest:
            return cls(variables=variables)
        return cls(words[:num], rest, variables)

    @property
    def same(self) -> str:
        """Return which variables the next command needs as well; empty for none."""
        return f"with the same {', '.join(self.variables)}" if self.variables else ""

    def resuming(self, path: str) -> str:
        """Return the command that continues from a checkpoint.

        Where this one isn't known, is long, may have a password in it, or has characters that
        a terminal doesn't show, three dots stand for all but the checkpoint; and for that, too,
        if it is so.

        Args:
            path: The checkpoint's folder.
        """
        begin: tuple[str, ...] = ("paramfleet", "launch", "--resume")
        if _is_secret(path) or not path.isprintable():
            return f"{shlex.join(begin)} ..."
        begin = (*begin, path)
        words = (*_without_resume(self.options[1:]), *self.rest)
        whole = shlex.join((*begin, *words))
        is_shown = all(word.isprintable() and not _is_secret(word) for word in words)
        if not self.options or not is_shown or len(whole) > _MOST_CHARACTERS:
            return f"{shlex.join(begin)} ..."
        return whole


def _is_secret(word: str) -> bool:
    """Return whether a word may be a password, have one in it, or come before one."""
    is_address = "://" in word and ("@" in word or "=" in word)
    return is_address or bool(_SECRET.match(word))


def _without_resume(options: tuple[str, ...]) -> list[str]:
    kept, words = [], iter(options)
    for word in words:
        if word == "--resume":
            next(words, "")
        elif not word.startswith("--resume="):
            kept.append(word)
    return kept
