"""A stream of a model's changes: ``stream.json``, the manifest of a base, and a change.

Half of the cases of what has a SHA-256 are made with right ones.
"""

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save
from tests.fuzz.running import Reader
from tests.security.mutations import mutated, mutated_bytes, mutated_tensors

from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, StreamTable, TableChange
from paramfleet_shared.deltas.stored.head import base_folder, change_file
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.tensorfile import parse_tensors
from paramfleet_shared.system.clock import SystemClock

__all__ = ["streams"]


class _Odd(NamedTuple):
    """One file of a stream, instead of its own."""

    path: Path
    content: bytes
    head: dict[str, Any] | None
    """What ``stream.json`` says then, where its SHA-256 is to be right."""


class _Stream:
    """A stream with a base and two changes, of which files are odd for a while."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        writer = StreamWriter(folder, clock=SystemClock())
        ids, rows, none = np.arange(5), np.ones((5, 2), np.float32), np.empty(0, np.int64)
        table = StreamTable(name="t", dim=2)
        writer.begin([table], [("t", ids, rows)], {"w": rows}, moment=1.0)
        for number, removed in ((2.0, none), (3.0, ids[3:])):
            change = TableChange(ids[:3], rows[:3] * number, removed)
            writer.publish(Change(moment=number, tables={"t": change}, dense={"w": rows}))
        head = StreamReader(folder).look()
        self.main = folder / "stream.json"
        self.manifest = base_folder(folder, head.stream, 0) / "manifest.json"
        self.newest = change_file(folder, head.stream, 2)
        paths = (self.main, self.manifest, self.newest)
        self.whole = {path: path.read_bytes() for path in paths}
        self.said = json.loads(self.whole[self.main])
        self.change = parse_tensors(self.whole[self.newest])

    def make(self, dice: Random) -> _Odd:
        path = dice.choice(list(self.whole))
        if dice.random() < 0.4:
            content = mutated_bytes(self.whole[path], dice)
        elif path == self.newest:
            content = self._odd_change(dice)
        else:
            changed = mutated(json.loads(self.whole[path]), dice)
            content = json.dumps(changed, default=repr).encode(errors="surrogatepass")
        if path == self.main or dice.random() < 0.3:
            return _Odd(path, content, None)
        sha256 = hashlib.sha256(content).hexdigest()
        says: dict[str, Any] = {"digest": sha256}
        if path == self.manifest:
            says = {"bases": [{"number": 0, "sha256": sha256}]}
        return _Odd(path, content, self.said | says)

    def _odd_change(self, dice: Random) -> bytes:
        metadata = dict(self.change.metadata)
        if dice.random() < 0.4:
            name = dice.choice(list(metadata))
            text = mutated_bytes(metadata[name].encode(), dice)
            metadata[name] = text.decode(errors="replace")
        return save(mutated_tensors(self.change.tensors, dice), metadata)

    def read(self, odd: _Odd) -> None:
        odd.path.write_bytes(odd.content)
        if odd.head is not None:
            self.main.write_text(json.dumps(odd.head))
        try:
            reader = StreamReader(self.folder)
            base = reader.base()
            for _ in reader.changes(base.number, reader.look().last):
                pass
        finally:
            for path in {odd.path, self.main}:
                path.write_bytes(self.whole[path])


def streams(folder: Path) -> Reader:
    """Return what reads a stream."""
    stream = _Stream(folder)
    return Reader("streams", stream.make, stream.read, (FleetError,), share=0.02)
