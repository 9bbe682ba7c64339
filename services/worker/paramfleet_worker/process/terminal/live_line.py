"""One line at the bottom of a terminal: a bar, and words behind it."""

import io
from collections.abc import Sequence

__all__ = ["drawn"]

_MIN_BAR, _MAX_BAR = 8, 32
"""Columns of the bar."""


def drawn(
    parts: Sequence[str], *, share: float | None, width: int, colours: bool, unicode: bool
) -> str:
    """Return a line that fits, without its end.

    Args:
        parts: What to say, the most important first: the last ones are left out where there
            is no room.
        share: How much is done, from 0 to 1; None has no bar.
        width: Columns of the terminal.
        colours: Whether it may have some.
        unicode: Whether the terminal shows more than ASCII.
    """
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 -- slow

    columns = max(1, width - 1)  # a full line would wrap in some terminals
    if share is not None and (words := _fitting(parts, columns - _MIN_BAR - 2)):
        free = min(columns - cell_len(words) - 2, _MAX_BAR)
        return f"{_bar(share, free, colours=colours, unicode=unicode)}  {words}"
    words = _fitting(parts, columns) or (parts[0] if parts else "")
    return set_cell_size(words, columns) if cell_len(words) > columns else words


def _fitting(parts: Sequence[str], columns: int) -> str:
    """Return as many of the parts as there is room for."""
    from rich.cells import cell_len  # noqa: PLC0415 -- slow

    words = ""
    for part in parts:
        longer = f"{words}  {part}" if words else part
        if cell_len(longer) > columns:
            break
        words = longer
    return words


def _bar(share: float, width: int, *, colours: bool, unicode: bool) -> str:
    from rich.console import Console  # noqa: PLC0415 -- slow
    from rich.progress_bar import ProgressBar  # noqa: PLC0415 -- slow

    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8" if unicode else "ascii")
    console = Console(
        file=file, width=width, force_terminal=True, legacy_windows=False,
        color_system="standard" if colours else None, no_color=not colours, _environ={},
    )  # fmt: skip
    with console.capture() as captured:
        bar = ProgressBar(
            total=1.0, completed=share, width=width, complete_style="cyan",
            finished_style="green",
        )  # fmt: skip
        console.print(bar, end="")
    return captured.get()
