"""Lines that are no sample: what is said of them, and what becomes of them."""

import hashlib
import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from paramfleet.data.parsing import text_kernels as kernels
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.regular_files import open_own

__all__ = ["BadLine", "BadLineError", "BadLines", "OnBadLine"]

OnBadLine = Literal["raise", "skip", "quarantine"]

_REASONS = {
    kernels.SLOT_MISSING: "the line ends before this slot",
    kernels.BAD_COUNT: "a slot begins with the number of its values, which {word!r} is not",
    kernels.TOO_FEW_VALUES: "the line ends before the slot's last value",
    kernels.NOT_AN_INTEGER: "{word!r} is no whole number, which an int64 slot takes",
    kernels.NOT_A_NUMBER: "{word!r} is no number, which a float32 slot takes",
    kernels.OUT_OF_RANGE: "{word!r} does not fit the slot's type",
    kernels.WRONG_WIDTH: "the slot is dense and takes {width} values, not {word!r}",
    kernels.LEFTOVER: "{word!r} is after the last slot",
}

_MAX_WORD = 40
"""Characters of a word that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BadLine:
    """What is wrong with a line."""

    source: str
    """The file, or the command whose output for a file it is."""
    file: str
    line: int
    """From 1, in the file or in the command's output for it."""
    slot: str
    column: int
    """Byte of the line, from 1."""
    reason: str
    text: bytes
    """The line, without its end."""


class BadLineError(ContractError):
    """A line of data doesn't hold what the slots say."""

    code = "contract.bad_line"
    source: str
    line: int
    slot: str
    column: int
    reason: str
    sentence = "{source}, line {line}, slot {slot}, column {column}: {reason}"


class BadLines:
    """Counts bad lines and does with them what the settings say. Any thread may call it.

    Args:
        on_bad_line: ``raise`` ends the reading; ``skip`` leaves the line out;
            ``quarantine`` does too, and keeps it in a file.
        folder: Of the quarantine: for every file of data that has bad lines, a file with
            ``line, slot, column, reason`` and the line itself, separated by tabs.
        counts: Grows by one of the file at each.
    """

    def __init__(self, on_bad_line: OnBadLine, folder: Path, counts: Counter[str]) -> None:
        self._counts = counts
        self._on_bad_line = on_bad_line
        self._folder = folder
        self._lock = threading.Lock()

    def begin(self, file: str, *, lines_read: int) -> None:
        """Forget what a quarantine holds of the lines that are read again."""
        if self._on_bad_line != "quarantine":
            return
        path = self.path_of(file)
        if path.is_file() and not path.is_symlink():
            entries = path.read_bytes().split(b"\n")[:-1]  # the line itself may have \r
            kept = [entry for entry in entries if int(entry.split(b"\t", 1)[0]) <= lines_read]
            with _opened(path, replace=True) as anew:
                anew.writelines(entry + b"\n" for entry in kept)

    def take(self, bad: BadLine) -> None:
        """Do what is to be done with a bad line.

        Raises:
            BadLineError: if reading is to end with it.
        """
        with self._lock:
            self._counts[bad.file] += 1
            if self._on_bad_line == "quarantine":
                self._keep(bad)
        if self._on_bad_line == "raise":
            raise BadLineError(
                source=bad.source,
                line=bad.line,
                slot=bad.slot,
                column=bad.column,
                reason=bad.reason,
            )

    def path_of(self, file: str) -> Path:
        """Return where the bad lines of a file of data are kept."""
        digest = hashlib.blake2b(file.encode(), digest_size=4).hexdigest()
        return self._folder / f"{Path(file).name}-{digest}.bad"

    def _keep(self, bad: BadLine) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        head = f"{bad.line}\t{bad.slot}\t{bad.column}\t{bad.reason}\t".encode()
        with _opened(self.path_of(bad.file)) as kept:
            kept.write(head + bad.text + b"\n")


def _opened(path: Path, *, replace: bool = False) -> BinaryIO:
    """Open a file of a quarantine, never through a link that others put there."""
    descriptor = open_own(path, replace=replace, may_be_others=True, mode=0o666)
    return os.fdopen(descriptor, "ab")


def reason_of(code: int, *, word: bytes, width: int) -> str:
    """Return the sentence of a kernel's code."""
    shown = word.decode(errors="replace")
    if len(shown) > _MAX_WORD:
        shown = shown[:_MAX_WORD] + "..."
    return _REASONS[code].format(word=shown, width=width)
