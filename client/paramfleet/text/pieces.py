"""Files of text, piece by piece, each cut between two words."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paramfleet.data.reading.files import ByPath, open_file, read_some, require_files
from paramfleet.text.kernels import break_behind

__all__ = ["PIECE_BYTES", "Tokens", "folding", "read_pieces"]

PIECE_BYTES = 1 << 16
"""Text of a piece, about: workers share a text by pieces."""

Tokens = Literal["letters", "blanks"]


def folding(tokens: Tokens) -> NDArray[np.uint8]:
    """Return what each byte is in a word, uint8 [256]; 0 for one that is between words."""
    bytes_ = np.arange(256, dtype=np.uint8)
    if tokens == "blanks":
        return np.where(bytes_ > ord(" "), bytes_, 0).astype(np.uint8)
    lower = np.where((bytes_ >= ord("A")) & (bytes_ <= ord("Z")), bytes_ + 32, bytes_)
    return np.where((lower >= ord("a")) & (lower <= ord("z")), lower, 0).astype(np.uint8)


def read_pieces(files: Sequence[str], tokens: Tokens) -> Iterator[bytes]:
    """Yield the text of some files, in order; no word goes on in the next piece.

    Args:
        files: Paths, or addresses for fsspec; ``.gz`` and ``.xz`` are unpacked.
        tokens: What a word is. ``letters``: a run of a to z, capitals made small; whatever
            else is there is between words. ``blanks``: a run of bytes above 32, as they are.

    Raises:
        EmptyFileListError: if there are no files.
        CannotReadFileError: if one isn't there.
        DamagedFileError: if a compressed one is cut off or broken.
    """
    fold = folding(tokens)
    require_files(files, ByPath())
    for file in files:
        rest = b""
        with open_file(file, ByPath()) as opened:
            while more := read_some(opened, file, PIECE_BYTES):
                text = rest + more
                cut = break_behind(np.frombuffer(text, np.uint8), fold)
                rest = text[cut:]
                if cut:
                    yield text[:cut]
        if rest:
            yield rest
