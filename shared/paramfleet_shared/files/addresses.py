"""Folders on other file systems: S3, HDFS, FTP, and whatever else fsspec opens.

An ``Address`` is a path whose file system is named in front, as in ``s3://bucket/kept``. It is
joined and taken apart as any path. What this package reads and writes of checkpoints takes one
instead of a local path; everything else refuses it, since it is no path of the system's.

Such systems have no names that change at once. So a folder is whole when its last file is
there, which its writer writes last. fsspec is imported when the first address is used.
"""

import os
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import IO, Any, NoReturn

from typing_extensions import override

from paramfleet_shared.errors import ContractError

__all__ = ["Address", "FolderNameError", "place_of", "split_places"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL = ("file://", "local://")
_SEP = re.escape(os.pathsep)
_ENTRY = re.compile(rf"(?:{_SCHEME.pattern}[^/]*)?(?:[^{_SEP}]|{_SEP}(?=//))*")
"""One name among several: what separates them may stand before a port, too."""

_PASSWORD = re.compile(r"([^:@]*):.*@")
"""What precedes a host that a password comes with."""

_SHOWN = 200
"""Characters of a wrong name that an error repeats."""


class FolderNameError(ContractError):
    """No folder can have this name, or what has it must stay."""

    code = "contract.folder_name"
    path: str
    rule: str
    sentence = "folder {path!r}: {rule}"


_SPECIAL = "\\%?#"
_STARS = r"\1:***@"
_WITH_LOGIN = (
    "an address must come without a password, since addresses are shown and sent on: give it "
    "in the file system's own settings, as in the environment or fsspec's configuration"
)
_WHOLE_SERVER = (
    "is a whole server or bucket: name a folder of it, as in hdfs://host:8020/kept, and put "
    f"{os.pathsep!r} only after that"
)


def place_of(name: str | os.PathLike[str]) -> Path:
    """Return a path of this machine, or an address."""
    if isinstance(name, Path):
        return name
    text = os.fspath(name)
    if not _SCHEME.match(text):
        return Path(text)
    for local in _LOCAL:
        if text.startswith(local):
            return Path(text.removeprefix(local))
    return Address(text)


def split_places(text: str) -> list[str]:
    """Return names of folders that a setting has with ``os.pathsep`` between.

    Raises:
        FolderNameError: if an address among them can't be used, or names no folder.
    """
    names = [name for name in _ENTRY.findall(text) if name]
    for place in map(place_of, names):
        if isinstance(place, Address):
            is_whole = len(place.parts) < 3 or place.parts[1].endswith(os.pathsep)
            rule = place.problem or (_WHOLE_SERVER if is_whole else "")
            if rule:
                raise FolderNameError(path=str(place)[:_SHOWN], rule=rule)
    return names


class Address(PosixPath):
    """A file or folder of a file system that fsspec opens."""

    @override
    def __str__(self) -> str:
        """Return it as it may be shown: a password in it is replaced by stars."""
        scheme, *names = self.parts
        shown = [_PASSWORD.sub(_STARS, host) for host in names[:1]]
        return f"{scheme}//{'/'.join(shown + names[1:])}"

    @override
    def __fspath__(self) -> NoReturn:
        """Let nothing of the system's take it.

        Raises:
            TypeError: always.
        """
        problem = f"{self} is no path of this machine"
        raise TypeError(problem)

    @override
    def __hash__(self) -> int:
        return hash(self.parts)

    @property
    def problem(self) -> str:
        """Return why it can't be used; empty if it is one place of one file system.

        File systems read some characters in ways of their own: as separators, or as ``..``.
        """
        whole = "/".join(self.parts)
        if ".." in self.parts or "::" in whole or len(self.parts) < 2:
            return "must be one folder of one file system"
        if any(letter in whole for letter in _SPECIAL):
            return f"an address must have none of {' '.join(_SPECIAL)}"
        return _WITH_LOGIN if _PASSWORD.match(self.parts[1]) else ""

    @override
    def is_absolute(self) -> bool:
        return True

    @override
    def absolute(self) -> "Address":
        return self

    @override
    def resolve(self, strict: bool = False) -> "Address":
        del strict  # links are another system's own
        return self

    @override
    def expanduser(self) -> "Address":
        return self

    @override
    def is_symlink(self) -> bool:
        return False

    @override
    def exists(self, **_: Any) -> bool:
        """Return whether it is there.

        Raises:
            OSError: if the file system refuses to say.
        """
        try:
            self._info()
        except FileNotFoundError:
            return False
        return True

    @override
    def is_dir(self, **_: Any) -> bool:
        try:
            return bool(self._info()["type"] == "directory")
        except FileNotFoundError:
            return False

    @override
    def lstat(self) -> Any:
        """Return length and kind, and when it was changed if that is known."""
        info = self._info()
        is_file = info["type"] == "file"
        changed = next(
            (info[key] for key in ("LastModified", "mtime", "created") if key in info), 0
        )
        seconds = changed if isinstance(changed, int | float) else changed.timestamp()
        return SimpleNamespace(
            st_size=info.get("size") or 0,
            st_mode=stat.S_IFREG if is_file else stat.S_IFDIR,
            st_mtime=seconds,
        )

    @override
    def mkdir(self, *_: Any, **__: Any) -> None:
        """Make nothing: a folder is there with its first file, or is made with it."""

    @override
    def iterdir(self) -> Generator["Address", None, None]:
        """Yield what is in a folder.

        Raises:
            OSError: if the file system refuses.
        """
        with _refusing(self):
            system, path = self._opened()
            system.invalidate_cache()
            own = str(path).rstrip("/")  # some list what marks an empty folder, or a file
            found = [str(name).rstrip("/") for name in system.ls(path, detail=False)]
            names = [name.rpartition("/")[2] for name in found if name != own]
        yield from (self / name for name in sorted(set(names)) if name)

    @override
    def glob(self, pattern: str) -> Generator["Address", None, None]:  # type: ignore[override, unused-ignore]
        return (each for each in self.iterdir() if each.match(pattern))

    @override
    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file.

        Raises:
            OSError: if the file system refuses.
        """
        with _refusing(self):
            system, path = self._opened()
            if not missing_ok or system.exists(path):
                system.rm_file(path)

    def remove_if_empty(self) -> None:
        """Remove a folder that has nothing in it, where a file system has such folders.

        Raises:
            OSError: if the file system refuses to list it.
        """
        with _refusing(self):
            system, path = self._opened()
            system.invalidate_cache()
            if system.isdir(path) and not system.ls(path, detail=False):
                with suppress(Exception):  # some know only folders with files in them
                    system.rmdir(path)

    @contextmanager
    def reading(self) -> Iterator[IO[bytes]]:
        """Open a file for reading.

        Raises:
            OSError: if the file system refuses.
        """
        with _refusing(self):
            system, path = self._opened()
            system.invalidate_cache()
            opened = system.open(path, "rb")
        with _refusing(self, ValueError), opened as file:  # the reader's own judgement
            yield file

    def writing(self) -> AbstractContextManager[IO[bytes]]:
        """Open a file for writing; it is there when the block has ended.

        Raises:
            OSError: if the file system refuses.
        """
        return self._writing("wb")

    @contextmanager
    def _writing(self, mode: str) -> Iterator[IO[bytes]]:
        with _refusing(self):
            system, path = self._opened()
            system.makedirs(system._parent(path), exist_ok=True)  # noqa: SLF001 - has no other name
            opened = system.open(path, mode)
        with _refusing(self, ValueError), opened as file:
            yield file

    def create(self, content: bytes) -> bool:
        """Write a file that isn't there yet; return False if it is there.

        Not every file system can tell when two do that at the same moment: the later one's
        content stays there.

        Raises:
            OSError: if the file system refuses.
        """
        if self.exists():
            return False
        try:
            with self._writing("xb") as file:
                file.write(content)
        except FileExistsError:
            return False
        except (OSError, ValueError):  # it knows no such mode, or refuses, or has written it
            if self.exists():
                with self.reading() as there:
                    return there.read(len(content) + 1) == content
            with self.writing() as file:
                file.write(content)
        return True

    def _info(self) -> dict[str, Any]:
        with _refusing(self):
            system, path = self._opened()
            system.invalidate_cache()
            info: dict[str, Any] = system.info(path)
            return info

    def _opened(self) -> tuple[Any, str]:
        """Return the file system, and the path on it.

        Raises:
            ValueError: if it isn't one place of one file system.
        """
        import fsspec  # noqa: PLC0415 - slow, and few need it

        if self.problem:
            raise ValueError(self.problem)
        system, path = fsspec.core.url_to_fs(str(self))
        return system, path


@contextmanager
def _refusing(address: Address, *own: type[Exception]) -> Iterator[None]:
    """Let whatever a file system raises be an error of the system.

    Args:
        address: Named by it.
        own: What else stays as it is.

    Raises:
        OSError: if it raises something.
    """
    try:
        yield
    except Exception as error:  # each library of fsspec's has its own
        if isinstance(error, (OSError, *own)):
            raise
        problem = f"{address}: {type(error).__name__}: {error}"
        raise OSError(problem) from error
