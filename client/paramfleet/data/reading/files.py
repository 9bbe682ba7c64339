"""Files of data: whose they are, where they lie, and how their bytes come.

Local paths are opened as they are. What names a file system, as ``s3://`` or ``hdfs://``,
is opened by fsspec, which is imported only then.
"""

import gzip
import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from typing_extensions import override

from paramfleet_shared.errors import ContractError

__all__ = [
    "CHUNK_BYTES",
    "ByPath",
    "CannotReadFileError",
    "DamagedFileError",
    "EmptyFileListError",
    "FileSystem",
    "TooFewFilesError",
    "list_folder",
    "located",
    "open_file",
    "read_some",
    "require_files",
    "split_files",
]

CHUNK_BYTES = 1 << 20
"""Text that is parsed at a time."""

_GZIP, _XZ = ".gz", ".xz"

_LOGIN = {"hdfs": ("user",), "s3": ("key", "secret"), "s3a": ("key", "secret")}
"""What file systems call user and password, where it isn't ``username, password``."""

_NOT_OPENED = (OSError, ImportError, ValueError, TypeError)
"""What fsspec raises where there is no file, no such file system, or no library for it."""


class FileSystem(Protocol):
    """Where paths lie that don't say it themselves; a dataset's settings are one."""

    @property
    def fs_name(self) -> str:
        """The address of a file system; empty for local paths."""
        ...

    @property
    def fs_ugi(self) -> str:
        """``user`` or ``user,password``."""
        ...


class ByPath(NamedTuple):
    """Every path says itself where it lies."""

    fs_name: str = ""
    fs_ugi: str = ""


class EmptyFileListError(ContractError):
    """A dataset has no files."""

    code = "contract.empty_file_list"
    sentence = "the dataset has no files: call set_filelist() with at least one"


class TooFewFilesError(ContractError):
    """There are more workers than files, so that one would have nothing to read."""

    code = "contract.too_few_files"
    num_files: int
    num_workers: int
    sentence = (
        "{num_files} files for {num_workers} workers: split the files into at least as "
        "many parts, or start fewer workers"
    )


class CannotReadFileError(ContractError):
    """A file of data isn't there, or can't be opened."""

    code = "contract.cannot_read_file"
    file: str
    reason: str
    sentence = "cannot read {file}: {reason}"


class DamagedFileError(ContractError):
    """A compressed file ends too early, or isn't what its name says."""

    code = "contract.damaged_file"
    file: str
    reason: str
    sentence = "{file} is damaged: {reason}: make or copy it again"


def split_files(
    files: Sequence[str], rank: int | None = None, num_workers: int | None = None
) -> list[str]:
    """Return a worker's contiguous share of the files.

    With ``r = len(files) % num_workers``, the first r workers get one more.

    Args:
        files: The same in every worker.
        rank: Whose share; this worker's own if not given.
        num_workers: Workers that share them; those of the job if not given.

    Raises:
        EmptyFileListError: if there are no files.
        TooFewFilesError: if a worker would get none.
        CallOrderError: before ``fleet.init``, where a number isn't given.
    """
    if rank is None or num_workers is None:
        from paramfleet.api.public import session  # noqa: PLC0415 -- readers do without torch

        rank = session.worker_index() if rank is None else rank
        num_workers = session.worker_num() if num_workers is None else num_workers
    if not files:
        raise EmptyFileListError
    if len(files) < num_workers:
        raise TooFewFilesError(num_files=len(files), num_workers=num_workers)
    each, extra = divmod(len(files), num_workers)
    begin = rank * each + min(rank, extra)
    return list(files[begin : begin + each + (rank < extra)])


def located(file: str, settings: FileSystem) -> str:
    """Return a file's whole address: a local path, or one with its file system."""
    if "://" in file or not settings.fs_name:
        return file
    scheme, _, host = settings.fs_name.partition("://")
    return f"{scheme}://{'/'.join([*filter(None, host.split('/')), file.lstrip('/')])}"


def require_files(files: Sequence[str], settings: FileSystem) -> None:
    """See that there are files, and that the local ones can be read at all.

    Raises:
        EmptyFileListError: if there are none.
        CannotReadFileError: if a local one isn't a file.
    """
    if not files:
        raise EmptyFileListError
    for file in files:
        path = located(file, settings)
        if "://" not in path and not Path(path).exists():
            raise CannotReadFileError(file=path, reason="there is no such file")
        if "://" not in path and Path(path).is_dir():
            raise CannotReadFileError(file=path, reason="it is a folder")


def list_folder(path: str, settings: FileSystem, *, also: str = "") -> list[str]:
    """Return the addresses of a remote folder's files, by name; of a file, its own.

    Those whose names begin with a dot are left out.

    Args:
        path: An address with its file system.
        settings: Say who asks.
        also: A name that isn't left out.

    Raises:
        CannotReadFileError: if it isn't there, or its file system can't be reached.
    """
    import fsspec  # noqa: PLC0415 - costs time, and local files don't need it

    try:
        system, root = fsspec.url_to_fs(path, **_login(path, settings))
        system.invalidate_cache()  # what came since the last look counts
        facts = system.ls(root, detail=True)
    except _NOT_OPENED as error:
        raise CannotReadFileError(file=path, reason=_why(error)) from error
    names = (fact["name"] for fact in facts if fact["type"] == "file")
    kept = (
        n for n in names if not (last := n.rpartition("/")[2]).startswith(".") or last == also
    )
    return sorted(system.unstrip_protocol(name) for name in kept)


def open_file(file: str, settings: FileSystem) -> IO[bytes]:
    """Open a file to read its bytes; those of a ``.gz`` or ``.xz`` are unpacked.

    Raises:
        CannotReadFileError: if it isn't there, or its file system can't be reached.
    """
    path = located(file, settings)
    try:
        raw: IO[bytes]
        raw = _open_remote(path, settings) if "://" in path else open(path, "rb")  # noqa: SIM115, PTH123 - closed by the caller
    except _NOT_OPENED as error:
        raise CannotReadFileError(file=path, reason=_why(error)) from error
    if path.endswith(_XZ):
        return cast("IO[bytes]", _Unpacked(raw))
    if not path.endswith(_GZIP):
        return raw
    unpacked: Any = gzip.GzipFile(fileobj=raw)
    unpacked.myfileobj = raw  # what it closes when it is closed
    return cast("IO[bytes]", unpacked)


def read_some(opened: IO[bytes], file: str, size: int = CHUNK_BYTES) -> bytes:
    """Return the next bytes of a file, at most ``size``; none at its end.

    Raises:
        DamagedFileError: if a compressed file is cut off or broken.
        CannotReadFileError: if reading fails.
    """
    try:
        data = opened.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise DamagedFileError(file=file, reason=f"{error}") from error
    except OSError as error:
        raise CannotReadFileError(file=file, reason=f"{error}") from error
    packed: Any = getattr(opened, "myfileobj", None)  # the file below gzip's
    if not data and packed is not None and not packed.tell():
        raise DamagedFileError(file=file, reason="it has no bytes, not even gzip's header")
    return data


class _Unpacked(lzma.LZMAFile):
    """The text in a ``.xz``; closing it closes the file below, too."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__(raw)
        self._raw = raw

    @override
    def close(self) -> None:
        super().close()
        self._raw.close()


def _open_remote(path: str, settings: FileSystem) -> IO[bytes]:
    import fsspec  # noqa: PLC0415 - costs time, and local files don't need it

    opened: IO[bytes] = fsspec.open(path, "rb", **_login(path, settings)).open()
    return opened


def _why(error: Exception) -> str:
    """Return why a file can't be opened, and of a library that is missing what to do."""
    if isinstance(error, ModuleNotFoundError):
        return f"its file system needs the package {error.name}: pip install {error.name}"
    return str(error)


def _login(path: str, settings: FileSystem) -> dict[str, str]:
    """Return what the file system of an address calls user and password."""
    names = _LOGIN.get(path.partition("://")[0], ("username", "password"))
    words = settings.fs_ugi.split(",", 1)
    return {name: word for name, word in zip(names, words, strict=False) if word}
