"""Whether changes follow each other: decisions without input and output."""

from typing import NamedTuple

from paramfleet_shared.deltas.errors import (
    ChangeForkedError,
    ChangeOrderError,
    ChangeRepeatedError,
    OtherStreamError,
)

__all__ = ["Chain", "Link"]


class Link(NamedTuple):
    """What a change says of its place in a stream."""

    stream: str
    number: int
    previous: str
    """SHA-256 of what it follows: the change before it, or the manifest of base 0."""


class Chain:
    """The place that a reader has reached in a stream.

    Args:
        stream: Which stream.
        number: The newest change that is known; 0 if none is.
        digest: SHA-256 of that change's file; of base 0's manifest if ``number`` is 0.
    """

    def __init__(self, stream: str, number: int, digest: str) -> None:
        self.stream = stream
        self.number = number
        self.digest = digest

    def check(self, link: Link, *, path: str) -> None:
        """Pass if a change is the next one.

        Args:
            link: What it says of itself.
            path: Where it was found, for errors: the place of the next one.

        Raises:
            OtherStreamError: if it is of another stream.
            ChangeRepeatedError: if it, or a later one, is known already.
            ChangeOrderError: if it is a later one than the next.
            ChangeForkedError: if it follows another one than is known.
        """
        number, found = self.number + 1, link.number
        if link.stream != self.stream:
            raise OtherStreamError(
                path=path, stream=self.stream, number=number, found=link.stream
            )
        if found < number:
            raise ChangeRepeatedError(path=path, stream=self.stream, number=number, found=found)
        if found > number:
            raise ChangeOrderError(path=path, stream=self.stream, number=number, found=found)
        if link.previous != self.digest:
            raise ChangeForkedError(path=path, stream=self.stream, number=number)

    def advance(self, link: Link, digest: str) -> None:
        """Take a change, which was checked, as the newest that is known.

        Args:
            link: What it says of itself.
            digest: SHA-256 of its file.
        """
        self.number, self.digest = link.number, digest
