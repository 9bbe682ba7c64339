"""Lines of text for readers, and what is wrong with one of them."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from paramfleet_shared.errors import ContractError

__all__ = ["LineError", "read_lines"]


class LineError(ContractError):
    """A line of a data file isn't what the reader expects, or can't be read."""

    code = "contract.line"
    file: str
    line: int
    rule: str
    sentence = "{file}, line {line}: {rule}"


def read_lines(file: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the number of each line, from 1, and its text; a file ``.gz`` is unpacked.

    A line feed ends a line, perhaps behind a carriage return, and nothing else does.

    Raises:
        LineError: if the file can't be read on: damaged, cut short, or not UTF-8.
    """
    path, number = Path(file), 0
    if path.suffix == ".gz" and path.is_file() and not path.stat().st_size:
        raise LineError(file=str(file), line=1, rule="the file has no bytes, not even gzip's")
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="\n")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8", newline="\n") as lines
        ):
            for number, line in enumerate(lines, start=1):
                yield number, f"{line[:-2]}\n" if line.endswith("\r\n") else line
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        rule = f"the file can't be read on ({error})"
        raise LineError(file=str(file), line=number + 1, rule=rule) from error
