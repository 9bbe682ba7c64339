"""The record of an idiom: the loop, and the outcome that each mode has for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

__all__ = [
    "BOUND",
    "IDIOMS",
    "MODES",
    "SAME",
    "Cell",
    "Differs",
    "Idiom",
    "Loop",
    "Mode",
    "Refused",
]
__all__ += ["Same", "idiom"]

Mode = Literal["alone", "sync", "async", "geo", "gpubox", "collective"]

MODES: Final[tuple[Mode, ...]] = get_args(Mode)

JOBS: Final[tuple[Mode, ...]] = ("sync", "async", "geo", "gpubox")
"""Modes with servers."""

BOUND: Final = 1e-5
"""Largest difference of a number from one torch process that counts as *same*."""

Loop = Callable[[Any], Mapping[str, Any]]
"""Takes a ``Run``, and returns what ``Run.end`` returns."""


@dataclass(frozen=True, kw_only=True)
class Same:
    """The numbers of one torch process, within the bound of the record."""

    @property
    def text(self) -> str:
        """Text of the cell on the page."""
        return "same"


@dataclass(frozen=True, kw_only=True)
class Differs:
    """Other numbers than torch's, for a reason that is documented."""

    how: str
    """Text of the cell behind *differs*."""
    warning: str = ""
    """Name of the warning on the terminal; empty if the page of the mode documents it."""
    equals: Loop | None = None
    """A loop of torch alone that computes these numbers; None where chance decides them."""

    @property
    def text(self) -> str:
        """Text of the cell on the page."""
        said = f" (`{self.warning}`)" if self.warning else ""
        return f"differs: {self.how}{said}"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An error of paramfleet before the first wrong step."""

    code: str

    @property
    def text(self) -> str:
        """Text of the cell on the page."""
        return f"refused: `{self.code}`"


Cell = Same | Differs | Refused

SAME: Final = Same()


@dataclass(frozen=True, kw_only=True)
class Idiom:
    """One row of the table."""

    title: str
    """What people write, in a few words; Markdown."""
    group: str
    loop: Loop
    cells: Mapping[Mode, Cell] = field(default_factory=dict)
    """Of the modes whose outcome is not *same*."""
    bound: float = BOUND

    @property
    def name(self) -> str:
        """Name of the loop, by which tests and processes know the idiom."""
        return self.loop.__name__

    def cell(self, mode: Mode) -> Cell:
        """Return the outcome that a mode must have."""
        return self.cells.get(mode, SAME)


IDIOMS: Final[dict[str, Idiom]] = {}
"""All records by name, in the order of the page."""


def idiom(
    title: str, *, group: str, bound: float = BOUND, cells: Mapping[str, Cell] | None = None
) -> Callable[[Loop], Loop]:
    """Return a decorator that adds a loop to the table.

    Args:
        title: What people write, in a few words.
        group: Section of the page.
        bound: Largest difference that counts as *same*.
        cells: Outcomes other than *same* by mode. A key may name several modes, as
            ``"sync async"``; ``"jobs"`` names those with servers, ``"*"`` all. A later key
            overrides an earlier one.

    Raises:
        ValueError: if the name is taken or a mode is unknown.
    """

    def add(loop: Loop) -> Loop:
        name = loop.__name__
        if name in IDIOMS:
            msg = f"two idioms are named {name}"
            raise ValueError(msg)
        IDIOMS[name] = Idiom(
            title=title, group=group, loop=loop, cells=_by_mode(cells or {}), bound=bound
        )
        return loop

    return add


def _by_mode(cells: Mapping[str, Cell]) -> dict[Mode, Cell]:
    every: dict[str, tuple[Any, ...]] = {"*": MODES, "jobs": JOBS}
    found: dict[Mode, Cell] = {}
    for key, cell in cells.items():
        for mode in (mode for word in key.split() for mode in every.get(word, (word,))):
            if mode not in MODES:
                msg = f"no mode is named {mode}"
                raise ValueError(msg)
            found[mode] = cell
    return found
