"""A base written file by file, its manifest last."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.merging.folding import put_rows
from paramfleet_shared.deltas.merging.runs import Run
from paramfleet_shared.deltas.records import StreamTable
from paramfleet_shared.deltas.stored.base_files import DENSE, BaseManifest, ListedTable
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import MANIFEST, base_folder
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.row_files import row_file_name
from paramfleet_shared.files.tensorfile import put_tensors

__all__ = ["BasePlace", "temporary_near", "write_base"]


class BasePlace(NamedTuple):
    """Which base is written, and of which moment."""

    stream: str
    number: int
    moment: float
    digest: str
    """SHA-256 of the file of change ``number``; empty if that is 0."""


def temporary_near(folder: Path) -> Callable[[], IO[bytes]]:
    """Return what opens a file without a name, on the disk of a folder if it is on one."""
    where = None if isinstance(folder, Address) else folder
    return lambda: tempfile.TemporaryFile(dir=where)


def write_base(
    folder: Path,
    place: BasePlace,
    tables: Sequence[tuple[StreamTable, Sequence[Run]]],
    dense: Mapping[str, NDArray[np.float32]],
    disk: StreamDisk,
) -> str:
    """Write a base; return the SHA-256 of its manifest.

    Args:
        folder: Of the stream.
        place: Which base.
        tables: Each with its rows, older runs first.
        dense: Parameters by name.
        disk: What writes.

    Raises:
        OSError: if the system refuses.
    """
    target = base_folder(folder, place.stream, place.number)
    temporary = temporary_near(folder)
    taken = {DENSE}
    listed: dict[str, ListedTable] = {}
    for table, runs in tables:
        name = row_file_name(table.name, taken)
        with disk.creating(target / name) as file:
            put = put_rows(file, runs, (table.name, table.dim), temporary)
        num_bytes, sha256 = put.written
        written = ListedFile(name=name, bytes=num_bytes, sha256=sha256)
        listed[table.name] = ListedTable(table=table, rows=put.rows, file=written)
    with disk.creating(target / DENSE) as file:
        num_bytes, sha256 = put_tensors(file, dense, {})
    manifest = BaseManifest(
        stream=place.stream,
        number=place.number,
        moment=place.moment,
        digest=place.digest,
        tables=listed,
        dense={name: values.shape for name, values in dense.items()},
        dense_file=ListedFile(name=DENSE, bytes=num_bytes, sha256=sha256),
    )
    content = manifest.to_bytes()
    with disk.creating(target / MANIFEST) as file:
        file.write(content)
    return hashlib.sha256(content).hexdigest()
