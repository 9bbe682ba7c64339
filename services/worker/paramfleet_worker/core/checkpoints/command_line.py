"""The command that launches a job again, from a checkpoint."""

import re
import shlex
from dataclasses import dataclass

__all__ = ["CommandLine"]

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

    @classmethod
    def of(cls, words: tuple[str, ...], rest: tuple[str, ...]) -> "CommandLine":
        """Return the command line of this process, if a user has typed it.

        Args:
            words: All of them, without the program's name.
            rest: The script and its arguments, as they were found in them.
        """
        num = len(words) - len(rest)
        if words[:1] != ("launch",) or words[num:] != rest:
            return cls()
        return cls(words[:num], rest)

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
