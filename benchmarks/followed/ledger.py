"""A ledger of what a folder of streams said: each change once, as it was when it came.

It reads the files by itself, with numpy and json alone, so that no reader of ours is believed.
Rows are of ids ``0`` to ``num_ids - 1``; one that isn't there has the value ``unknown``.

n = ids of a change, D = width of a row.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Entry", "Ledger", "State"]

POLL_S = 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What one change said."""

    stream: str
    number: int
    sha256: str
    previous: str
    moment: float
    ids: Mapping[str, NDArray[np.int64]]
    """By table: of rows that are new or changed. [n]"""
    removed: Mapping[str, NDArray[np.int64]]


@dataclass(slots=True)
class State:
    """A model, as some changes have left it."""

    rows: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """By table, of all ids: [num_ids, D]."""
    has_row: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    dense: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def copy(self) -> "State":
        """Return a state that doesn't change with this one."""
        return State(
            {name: rows.copy() for name, rows in self.rows.items()},
            {name: has.copy() for name, has in self.has_row.items()},
            {name: value.copy() for name, value in self.dense.items()},
        )


class Ledger(threading.Thread):
    """Notes what a folder says until ``close``; ``faults`` has what may not be.

    Args:
        folder: Of the streams. Its writer must keep what it publishes for a while.
        num_ids: Ids are below.
        unknown: What an id without a row reads, where that isn't zeros.
    """

    def __init__(self, folder: Path, *, num_ids: int, unknown: float) -> None:
        super().__init__(name="ledger", daemon=True)
        self.faults: list[str] = []
        self.streams: list[str] = []
        """In the order in which they began."""
        self.entries: list[Entry] = []
        self.states: dict[tuple[str, int], State] = {}
        """By stream and number, as they were published."""
        self.bases: set[tuple[str, int]] = set()
        """The bases that were compared with the changes before them."""
        self.unknown: dict[str, float] = {}
        """By table: what an id without a row reads."""
        self._folder = folder
        self._num_ids = num_ids
        self._first = unknown
        self._state = State()
        self._last = 0
        self._digest = ""
        self._moment = 0.0
        self._seen: dict[tuple[str, int], str] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Look at the folder again and again."""
        while not self._ended.wait(POLL_S):
            self._look()
        self._look()

    def close(self) -> None:
        """Look once more, and no more."""
        self._ended.set()
        self.join()

    def place(self, stream: str, number: int) -> tuple[int, int]:
        """Return what orders versions; a stream that isn't known is before all others."""
        known = self.streams.index(stream) if stream in self.streams else -1
        return known, number

    def _look(self) -> None:
        try:
            head = json.loads((self._folder / "stream.json").read_bytes())
        except FileNotFoundError:
            return
        if not self.streams or head["stream"] != self.streams[-1]:
            self._end_stream()
            self._begin(head)
        try:
            while self._last < head["last"]:
                self._take(head["stream"])
        except FileNotFoundError as error:
            if (
                json.loads((self._folder / "stream.json").read_bytes())["stream"]
                == head["stream"]
            ):
                self.faults.append(f"a change is missing: {error}")
            return
        if self._last > head["last"]:
            self.faults.append(f"{head['stream']} went back to {head['last']}")
        if self._last == head["last"] and self._digest != head["digest"]:
            self.faults.append(f"the digest of {head['last']} isn't that of the file")
        if head["moment"] < self._moment:
            self.faults.append(f"the moment of {head['last']} is before one that was published")
        self._moment = head["moment"]
        for each in head["bases"]:
            self._compare(head["stream"], each["number"], each["sha256"])

    def _begin(self, head: Mapping[str, Any]) -> None:
        """Take base 0 of another stream."""
        stream = head["stream"]
        if stream in self.streams:
            self.faults.append(f"stream {stream} came again")
        self._state, document, digest = self._base(stream, 0)
        if document["moment"] < self._moment:
            self.faults.append(f"stream {stream} is older than the one before")
        self.streams.append(stream)
        self.states[stream, 0] = self._state.copy()
        self._last, self._digest, self._moment = 0, digest, document["moment"]

    def _end_stream(self) -> None:
        """Take what was published of a stream after the last look, as far as it is there."""
        if self.streams:
            with_more = True
            while with_more:
                try:
                    self._take(self.streams[-1], is_known=False)
                except FileNotFoundError:
                    with_more = False

    def _take(self, stream: str, *, is_known: bool = True) -> None:
        """Take the next change.

        Raises:
            FileNotFoundError: if it isn't there.
        """
        number = self._last + 1
        content = (self._folder / stream / f"delta-{number:012d}.safetensors").read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        said, tensors = _read(content)
        if (said["stream"], int(said["number"])) != (stream, number):
            self.faults.append(f"in the place of {number} is {said['number']}")
        if said["previous"] != self._digest:
            if not is_known:  # a writer that was killed had not published it
                raise FileNotFoundError
            self.faults.append(f"{number} doesn't follow {self._last}")
        ids, removed = _parts(tensors, "ids/"), _parts(tensors, "removed/")
        self._check_ids(number, ids, removed)
        moment = float(said["moment"])
        if number > 1 and moment < self.entries[-1].moment:
            self.faults.append(f"the moment of {number} is before that of {self._last}")
        self.entries.append(
            Entry(
                stream=stream,
                number=number,
                sha256=sha256,
                previous=said["previous"],
                moment=moment,
                ids=ids,
                removed=removed,
            )
        )
        self._apply(ids, _parts(tensors, "rows/"), removed)
        self._state.dense |= _parts(tensors, "dense/")
        self.states[stream, number] = self._state.copy()
        self._last, self._digest = number, sha256

    def _check_ids(
        self,
        number: int,
        ids: Mapping[str, NDArray[np.int64]],
        removed: Mapping[str, NDArray[np.int64]],
    ) -> None:
        for name, changed in ids.items():
            for each in (changed, removed[name]):
                if len(each) and not (np.diff(each) > 0).all():
                    self.faults.append(f"{number}: ids of {name} aren't sorted, each once")
            if len(np.intersect1d(changed, removed[name])):
                self.faults.append(f"{number}: an id of {name} changed and went")

    def _apply(
        self,
        ids: Mapping[str, NDArray[np.int64]],
        rows: Mapping[str, NDArray[np.float32]],
        removed: Mapping[str, NDArray[np.int64]],
    ) -> None:
        for name, changed in ids.items():
            self._state.rows[name][changed] = rows[name]
            self._state.has_row[name][changed] = True
            self._state.rows[name][removed[name]] = self.unknown[name]
            self._state.has_row[name][removed[name]] = False

    def _compare(self, stream: str, number: int, sha256: str) -> None:
        """Compare a base with the changes that it was made of."""
        if (stream, number) in self.bases:
            return
        self.bases.add((stream, number))
        state, _, digest = self._base(stream, number)
        known = self.states[stream, number]
        if digest != sha256:
            self.faults.append(f"the manifest of base {number} isn't what stream.json says")
        if not is_same(state, known):
            self.faults.append(f"base {number} isn't what the changes made")

    def _base(self, stream: str, number: int) -> tuple[State, dict[str, Any], str]:
        """Return a base, what its manifest says, and the manifest's SHA-256."""
        folder, state = self._folder / stream / f"base-{number:012d}", State()
        content = (folder / "manifest.json").read_bytes()
        document: dict[str, Any] = json.loads(content)
        for table in document["tables"]:
            _, tensors = _read((folder / table["file"]["name"]).read_bytes())
            name, size = table["name"], (self._num_ids, table["dim"])
            self.unknown[name] = 0.0 if table["zero_unknown"] else self._first
            state.rows[name] = np.full(size, self.unknown[name], np.float32)
            state.has_row[name] = np.zeros(self._num_ids, np.bool_)
            state.rows[name][tensors["ids"]] = tensors["rows"]
            state.has_row[name][tensors["ids"]] = True
        _, state.dense = _read((folder / document["dense"]["file"]["name"]).read_bytes())
        return state, document, hashlib.sha256(content).hexdigest()


def is_same(one: State, other: State) -> bool:
    """Return whether two states are the same to the bit."""
    parts: list[tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]]] = [
        (one.rows, other.rows),
        (one.has_row, other.has_row),
        (one.dense, other.dense),
    ]
    return all(
        mine.keys() == its.keys() and all(np.array_equal(mine[n], its[n]) for n in mine)
        for mine, its in parts
    )


def _read(content: bytes) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Return metadata and tensors of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return header.pop("__metadata__", {}), dict(_tensors(header, content[8 + length :]))


def _tensors(header: Mapping[str, Any], body: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    kinds = {"I64": np.int64, "F32": np.float32}
    for name, about in header.items():
        start, stop = about["data_offsets"]
        array = np.frombuffer(body[start:stop], kinds[about["dtype"]])
        yield name, array.reshape(about["shape"])


def _parts(tensors: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): each for n, each in tensors.items() if n.startswith(prefix)}
