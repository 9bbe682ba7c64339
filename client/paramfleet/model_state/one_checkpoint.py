"""Which checkpoint a load is of: by its folder, or by what the pservers have loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paramfleet_shared.checkpoint.manifest import Manifest, ManifestError, read_manifest
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.net.wire.message import Message

__all__ = ["LoadedFrom", "NotResumedError", "folder_to_load"]

_MOST_LINKS = 40
"""As many as Linux follows."""


def folder_to_load(dirname: str | Path) -> Path:
    """Return the absolute name of a checkpoint's folder, where links such as ``latest`` lead.

    Links above it stay: they may lead elsewhere on a pserver's machine.

    Raises:
        ManifestError: if links lead in a circle, or can't be read.
    """
    folder = place_of(dirname).absolute()
    try:
        for _ in range(_MOST_LINKS):
            if not folder.is_symlink():
                return folder
            folder = folder.parent / folder.readlink()
    except OSError as error:
        raise ManifestError(path=str(dirname), rule=f"can't be read: {error}") from error
    raise ManifestError(path=str(dirname), rule="can't be read: too many links")


class NotResumedError(ContractError):
    """A job is to continue from a checkpoint that its pservers have not loaded."""

    code = "contract.not_resumed"
    folder: str
    sentence = (
        "the job is to continue from {folder}, and its pservers have loaded nothing: give them "
        "PARAMFLEET_WORKER__RESUME_FROM too, or start `paramfleet pserver` with --load"
    )


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

    def check_resumed(self, folder: str) -> None:
        """Pass if the pservers have loaded a checkpoint, or the job is to continue from none.

        Args:
            folder: Of the checkpoint that the job is to continue from; empty for none.

        Raises:
            NotResumedError: naming it.
        """
        if folder and not self.folder:
            raise NotResumedError(folder=folder)

    def read(self) -> tuple[Path, Manifest]:
        """Return the folder and its manifest.

        Raises:
            ManifestError: if it isn't the one that the pservers have read.
        """
        folder = place_of(self.folder)
        return folder, read_manifest(folder, digest=self.digest)
