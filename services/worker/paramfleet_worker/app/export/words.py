"""A list of words, of which line i, from 0, is the word of id i, and perhaps its count."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.regular_files import open_regular
from paramfleet_shared.values.texts import shown

__all__ = ["WordList", "WordsError", "opened_words"]

_LONGEST_LINE = 1 << 20
"""Bytes."""


class WordsError(ContractError):
    """A list of words doesn't name the ids of a table."""

    code = "contract.words"
    path: str
    rule: str
    sentence = "{path}: {rule}"


class WordList:
    """The words of an open file, read along with ids that grow. Only a line feed ends a line.

    Args:
        path: Of the file.
        file: Open for reading.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._next = 0

    def check(self, least: int, greatest: int) -> None:
        """Check all lines, and that there is one for each id from the least to the greatest.

        Raises:
            WordsError: naming the line that isn't a word, or how many there are.
        """
        self._file.seek(0)
        count = 0
        while line := self._file.readline(_LONGEST_LINE):
            count += 1
            self._word_of(count, line)
        if least < 0 or greatest >= count:
            rule = (
                f"has {count} lines, and the table has ids from {least} to {greatest}: "
                "line i is the word of id i, from 0; give a longer list, or none (--words)"
            )
            raise WordsError(path=str(self._path), rule=rule)
        self._file.seek(0)

    def names(self, ids: NDArray[np.int64]) -> Iterator[bytes]:
        """Yield the words of ids, int64 [n], which grow from call to call, too.

        Raises:
            WordsError: if the file isn't as ``check`` has found it.
        """
        for id_ in ids.tolist():
            line = next(islice(self._file, id_ - self._next, None), b"")
            self._next = id_ + 1
            yield self._word_of(self._next, line)

    def _word_of(self, number: int, line: bytes) -> bytes:
        """Return the word of a line, whose number counts from 1.

        Raises:
            WordsError: if it is none.
        """
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        word, *count = text.split(b" ")
        is_count = not count or (len(count) == 1 and count[0].isdigit())
        if len(line) == _LONGEST_LINE:
            rule = f"line {number} is too long: it must have fewer than {_LONGEST_LINE:,} bytes"
        elif word.split() != [word] or not is_count:  # bytes have ASCII's blanks alone
            given = shown(text.decode(errors="replace"))
            rule = f"line {number} must be one word, and perhaps its count, not {given}"
        elif not _is_utf8(word):
            rule = f"line {number} isn't UTF-8: {shown(word)}"
        else:
            return word
        raise WordsError(path=str(self._path), rule=rule)


@contextmanager
def opened_words(path: Path) -> Iterator[WordList]:
    """Open a list of words.

    Raises:
        WordsError: if it can't be read.
    """
    try:
        file = open_regular(path, may_be_link=True)
    except (OSError, ValueError) as error:
        raise WordsError(path=str(path), rule=f"can't be read ({error})") from error
    with file:
        yield WordList(path, file)


def _is_utf8(word: bytes) -> bool:
    try:
        word.decode()
    except UnicodeDecodeError:
        return False
    return True
