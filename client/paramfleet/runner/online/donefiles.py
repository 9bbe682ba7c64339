"""The lists of what is complete, as Fleet's readers know them: texts, and nothing of files.

``donefile.txt`` names checkpoints, a line each: day, key of the newest base, path, pass, 0,
with tabs between; the pass is -1 for a batch model, the checkpoint of a day's beginning.
``base_donefile.txt`` and ``patch_donefile.txt`` name bases and deltas, a JSON each: ``id``, of
a base its key, of a delta the unix time; ``key`` of the base; ``input``, the path with ``/000``
behind it; and ``monitor_data``, the metrics of the pass before. Values are texts, as Fleet's.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from paramfleet.runner.online.calendar import Place
from paramfleet.runner.online.course import Written
from paramfleet_shared.errors import ContractError

__all__ = [
    "BASES", "CHECKPOINTS", "DELTAS", "DonefileError", "base_line", "checkpoint_line",
    "delta_line", "new_id", "new_key", "read_written", "with_line",
]  # fmt: skip

CHECKPOINTS, BASES, DELTAS = "donefile.txt", "base_donefile.txt", "patch_donefile.txt"

_BATCH = -1
"""The pass of a batch model."""

_INPUT = re.compile(r"(?:.*/)?(\d{8})/(?:(base)(?:-(\d+))?|delta-(\d+))/000/?", re.DOTALL)


class DonefileError(ContractError):
    """A line of a list isn't what a training by days writes."""

    code = "contract.donefile"
    file: str
    line: int
    rule: str
    sentence = "{file}, line {line}: {rule}; correct it, or move the file"


def checkpoint_line(place: Place, *, key: int, path: str) -> str:
    """Return the line of a checkpoint."""
    number = place.number or _BATCH
    return f"{place.day}\t{key}\t{path}\t{number}\t0"


def base_line(*, key: int, path: str, monitor: str) -> str:
    """Return the line of a base."""
    return _json(identity=key, key=key, path=path, monitor=monitor)


def delta_line(*, identity: int, key: int, path: str, monitor: str) -> str:
    """Return the line of a delta."""
    return _json(identity=identity, key=key, path=path, monitor=monitor)


def with_line(text: str, line: str) -> str:
    """Return a list with one more line."""
    return "\n".join([*(each for _, each in _lines(text)), line, ""])


def read_written(checkpoints: str, bases: str, deltas: str) -> Written:
    """Return what the three lists name.

    Raises:
        DonefileError: if a line is none of theirs.
    """
    places = [_checkpoint(each, number) for number, each in _lines(checkpoints)]
    found: dict[Place, int] = {}
    for number, each in _lines(bases):
        day, within, key = _published(each, BASES, number)
        found[Place(day, within)] = key
    published = [_published(each, DELTAS, number) for number, each in _lines(deltas)]
    return Written(
        listed=frozenset(places),
        bases=found,
        deltas=frozenset((Place(day, number), key) for day, number, key in published),
    )


def new_key(written: Written, *, now: int) -> int:
    """Return the key of a base that is made at a unix time: that, or more if it is taken."""
    return max([now, *(key + 1 for key in written.bases.values())])


def new_id(deltas: str, *, now: int) -> int:
    """Return the id of a delta that is made at a unix time: that, or more if it is taken."""
    found = [int(json.loads(line)["id"]) for _, line in _lines(deltas)]
    return max([now, *(each + 1 for each in found)])


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield a list's lines but blank ones, each with its number.

    A path may have other ends of lines of Unicode's, as U+2028: they end no line here.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def _checkpoint(line: str, number: int) -> Place:
    """Return the place of a checkpoint's line.

    Raises:
        DonefileError: if it isn't one.
    """
    try:
        day, key, _, done, *_ = line.split("\t")
        found, _ = int(done), int(key)
    except ValueError:
        found, day = -2, ""
    if not re.fullmatch(r"\d{8}", day) or found < _BATCH:
        rule = "must be a day, a key, a path and a pass with tabs between"
        raise DonefileError(file=CHECKPOINTS, line=number, rule=rule)
    return Place(day, 0 if found == _BATCH else found)


def _published(line: str, file: str, number: int) -> tuple[str, int, int]:
    """Return day, pass and key of a base's or a delta's line.

    Raises:
        DonefileError: if it isn't one.
    """
    rule = "must be a JSON object with id, key and input, <path>/<day>/base/000 or delta-<pass>"
    try:
        facts: Any = json.loads(line)
        place, key = _INPUT.fullmatch(facts["input"]), int(facts["key"])
        int(facts["id"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DonefileError(file=file, line=number, rule=rule) from error
    if place is None or (place[2] is not None) != (file == BASES):
        raise DonefileError(file=file, line=number, rule=rule)
    return place[1], int(place[3] or place[4] or 0), key


def _json(*, identity: int, key: int, path: str, monitor: str) -> str:
    facts = {"id": str(identity), "key": str(key), "input": f"{path.rstrip('/')}/000"}
    return json.dumps({**facts, "monitor_data": monitor})
