"""The data sets by name, prepared once and cached as arrays.

Reading the tables takes seconds, and every worker of a job wants the same arrays. The
first one to need them leaves them in the cache folder; a file there is complete or
absent, since it is written under another name and then renamed. Its name holds a
digest of the code in this folder and of the files it was made from.
"""

import hashlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import census
import flights
from records import Dataset, Examples

__all__ = ["DATASETS", "load_dataset"]

DATASETS = ("flights", "census")

_log = logging.getLogger(__name__)


def load_dataset(name: str, *, data_dir: Path | None, cache_dir: Path | None) -> Dataset:
    """Return a data set, from the cache where it is there already.

    Args:
        name: One of ``DATASETS``.
        data_dir: Folder with the census; flights come from an installed package.
        cache_dir: Folder to keep the arrays in; ``None`` keeps nothing.

    Returns:
        The same arrays on every machine and in every process.

    Raises:
        ValueError: The name is unknown, or the census was asked for without a folder.
    """
    match name:
        case "flights":
            folder = flights.flight_files()
            return _cached(
                cache_dir, name, sorted(folder.iterdir()), lambda: flights.load_flights(folder)
            )
        case "census" if data_dir is not None:
            file = census.census_file(data_dir)
            return _cached(cache_dir, name, [file], lambda: census.load_census(file))
        case "census":
            raise ValueError("the census is read from a folder: give --data_dir")
        case _:
            msg = f"no data set {name!r}; there are {', '.join(DATASETS)}"
            raise ValueError(msg)


def _cached(
    cache_dir: Path | None, name: str, sources: list[Path], load: Callable[[], Dataset]
) -> Dataset:
    """Return the data set from its cache file, or load it and leave one."""
    if cache_dir is None:
        return load()
    file = cache_dir / f"{name}-{_digest(sources)}.npz"
    if file.is_file():
        with np.load(file, allow_pickle=False) as arrays:
            return Dataset(train=_unpacked(arrays, "train"), test=_unpacked(arrays, "test"))
    dataset = load()
    try:
        _write(file, _packed(dataset.train, "train") | _packed(dataset.test, "test"))
    except OSError as error:
        _log.warning("cache not written, the next run reads the tables again: %s", error)
    return dataset


def _digest(sources: list[Path]) -> str:
    """Return a name for what the arrays depend on: the code here, and the source files."""
    digest = hashlib.sha256()
    for code in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(code.read_bytes())
    for source in sources:
        facts = source.stat()
        digest.update(f"{source} {facts.st_size} {facts.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _write(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Put the arrays into the file at once; of several writers the last one stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
        try:
            np.savez(part, allow_pickle=False, **arrays)
            part.flush()
            Path(part.name).replace(file)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def _packed(examples: Examples, part: str) -> dict[str, np.ndarray]:
    """Return the arrays under names that tell the part."""
    return {
        f"{part}.wide_ids": examples.wide_ids,
        f"{part}.deep_ids": examples.deep_ids,
        f"{part}.dense": examples.dense,
        f"{part}.labels": examples.labels,
    }


def _unpacked(arrays: "np.lib.npyio.NpzFile", part: str) -> Examples:
    """Return the part that ``_packed`` named."""
    return Examples(
        wide_ids=arrays[f"{part}.wide_ids"],
        deep_ids=arrays[f"{part}.deep_ids"],
        dense=arrays[f"{part}.dense"],
        labels=arrays[f"{part}.labels"],
    )
