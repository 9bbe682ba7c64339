"""All parts of a load are of one checkpoint, whatever gets its folder's name meanwhile.

Its manifest is read once, and names each file with its SHA-256; who reads the manifest again,
as pservers do, proves that it is the same by its digest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    Manifest,
    read_manifest,
)

__all__ = ["of_one_manifest", "one_manifest"]


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
