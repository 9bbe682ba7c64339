"""All parts of a load are of one checkpoint, whatever gets its folder's name meanwhile.

Its manifest is read once, and names each file with its SHA-256; who reads the manifest again,
as pservers do, proves that it is the same by its digest.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    Manifest,
    ManifestError,
    read_manifest,
)
from paramfleet_shared.net.wire.message import Message

__all__ = ["LoadedFrom", "folder_to_load", "of_one_manifest", "one_manifest"]

_MOST_LINKS = 40
"""As many as Linux follows."""


def folder_to_load(dirname: str | Path) -> Path:
    """Return the absolute name of a checkpoint's folder, where links such as ``latest`` lead.

    Links above it stay: they may lead elsewhere on a pserver's machine.

    Raises:
        ManifestError: if links lead in a circle, or can't be read.
    """
    folder = Path(dirname).absolute()
    try:
        for _ in range(_MOST_LINKS):
            if not folder.is_symlink():
                return folder
            folder = folder.parent / folder.readlink()
    except OSError as error:
        raise ManifestError(path=str(dirname), rule=f"can't be read: {error}") from error
    raise ManifestError(path=str(dirname), rule="can't be read: too many links")


@contextmanager
def one_manifest(folder: Path) -> Iterator[Manifest]:
    """Read a manifest for a load; say so if another took its place during the load.

    Raises:
        ManifestError: if the folder isn't a checkpoint, or is another one meanwhile.
        CheckpointDamagedError: as the body did, if it is still the same.
    """
    manifest = read_manifest(folder)
    with of_one_manifest(folder, manifest):
        yield manifest


@contextmanager
def of_one_manifest(folder: Path, manifest: Manifest) -> Iterator[None]:
    """Say so if another manifest took the place of one that was read.

    Raises:
        ManifestError: if the folder is another checkpoint meanwhile.
        CheckpointDamagedError: as the body did, if it is still the same.
    """
    try:
        yield
    except CheckpointDamagedError:
        read_manifest(folder, digest=manifest.digest)
        raise


class LoadedFrom(NamedTuple):
    """The checkpoint that the pservers' tables were loaded from."""

    folder: str = ""
    """Empty for none."""

    digest: str = ""
    """SHA-256 of its manifest, as hexadecimal digits."""

    @classmethod
    def of(cls, answers: Sequence[Message]) -> "LoadedFrom":
        """Return what all pservers answered to ``declare``.

        Raises:
            ManifestError: if they have loaded different checkpoints.
        """
        loaded = sorted(
            cls(str(answer.fields["folder"]), str(answer.fields["manifest"]))
            for answer in answers
            if answer.fields["folder"]
        )
        for other in loaded:
            if other.digest != loaded[0].digest:
                rule = "the pservers have loaded different checkpoints; start them again"
                raise ManifestError(path=other.folder, rule=rule)
        return loaded[0] if loaded else cls()

    def read(self) -> tuple[Path, Manifest]:
        """Return the folder and its manifest.

        Raises:
            ManifestError: if it isn't the one that the pservers have read.
        """
        folder = Path(self.folder)
        return folder, read_manifest(folder, digest=self.digest)
