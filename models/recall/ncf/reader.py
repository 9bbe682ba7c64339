"""Users and items: PaddleRec's preparation of MovieLens, ``user,item,label`` a line."""

from collections.abc import Iterator, Sequence

from paramfleet.runner import Config, HyperParameters, LineError, read_lines

__all__ = ["RecDataset"]

Sample = tuple[int, int, int]
"""User, item, and whether they belong together."""


class RecDataset:
    """The samples of some files, in order.

    Args:
        files: Paths; gzipped if they end in .gz.
        config: Not read: nothing in it concerns the rows.
    """

    def __init__(self, files: Sequence[str], config: Config[HyperParameters]) -> None:
        self._files = files
        self.config = config

    def __iter__(self) -> Iterator[Sample]:
        """Yield a sample a line.

        Raises:
            LineError: if one isn't three whole numbers.
        """
        for name in self._files:
            for number, line in read_lines(name):
                try:
                    user, item, label = map(int, line.split(","))
                except ValueError as error:
                    raise LineError(file=name, line=number, rule=str(error)) from error
                yield user, item, label
