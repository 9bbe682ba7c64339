"""Numbers for TensorBoard."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from paramfleet_shared.errors import ContractError

__all__ = ["TensorBoardMissingError", "Write", "visual"]

Write = Callable[[str, Mapping[str, float], int], None]
"""Takes a group (train, test), values by name, and the step they belong to."""


class TensorBoardMissingError(ContractError):
    """TensorBoard files are to be written, and its package isn't installed."""

    code = "contract.tensorboard_missing"
    sentence = (
        "runner.use_visual and visual_path need TensorBoard: pip install 'paramfleet[visual]'"
    )


@contextlib.contextmanager
def visual(folder: Path | None) -> Iterator[Write]:
    """Give a function that writes scalars below ``folder``; without one it does nothing.

    Raises:
        TensorBoardMissingError: if there is a folder and no TensorBoard.
    """
    if folder is None:
        yield lambda _group, _values, _step: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TensorBoardMissingError from error
    writer = SummaryWriter(str(folder))

    def write(group: str, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(f"{group}/{name}", value, step)

    try:
        yield write
    finally:
        writer.close()
