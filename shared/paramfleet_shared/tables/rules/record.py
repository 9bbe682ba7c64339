"""What one optimizer is, as data: all that is said of a rule is said in its ``Rule``.

A formula is a pure function of numbers. The kernels compile it for vectors and floats
(``kernels.stepping.rules``), so it may use nothing but arithmetic, tuples and the functions
that it is given, and its operations stand in the order of the optimizer that it is to equal.

Nothing here knows of numba or torch: a process that only reads specs loads neither.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = [
    "MAX_CONSTANTS",
    "Broken",
    "Column",
    "Constant",
    "Constants",
    "Formula",
    "Moment",
    "Numbers",
    "Pace",
    "Rule",
    "Statistics",
    "TorchForm",
]

MAX_CONSTANTS = 6
"""Of a formula beside its rate."""

Constants = Mapping[str, Any]
"""A rule's settings by name, as a table is declared with them: numbers, flags and names."""

Pace = Literal["gradients", "first_gradients", "even", "none"]
"""How long the steps are: as the gradients, as the first ones only, alike whatever the
gradients are, or not known."""


class Broken(NamedTuple):
    """A constant that doesn't go with the others."""

    name: str
    rule: str
    """What it must be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A setting of a rule that doesn't change while it trains."""

    name: str
    default: float | bool | str
    """A flag has no range, and neither has a name."""
    least: float = 0.0
    most: float = 1.0
    """Within them finite gradients leave every state finite (see ``bounds``)."""
    below_most: bool = False
    """Whether ``most`` itself is too much."""
    choices: tuple[str, ...] = ()
    """Of a name: which there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A number of state beside each value, or beside each row."""

    name: str
    """As torch's optimizer calls it."""
    per_row: bool = False
    """Whether a row of a sparse table has one, not one for each value."""
    skips: int = 0
    """How many of a row's first values have none."""
    first: float | None = None
    """What each is in a new row; None for what the rule says."""
    log2: int | None = None
    """Magnitudes are below 2 to the power of this; None for any finite number."""
    not_negative: bool = False
    """Whether it is a sum or a mean of squares."""
    merge: Literal["mean", "sum"] = "mean"
    """How the columns of workers that trained apart become one: the mean, or the first number
    and the sum of what each has added to it."""

    def width(self, dim: int) -> int:
        """Return how many numbers of it a row of ``dim`` values has."""
        return 1 if self.per_row else dim - self.skips


class Moment(NamedTuple):
    """What is known of one step."""

    lr: float
    step: int
    """From 1."""
    first: bool = False
    """Whether a dense table has never been stepped."""
    now: int = 0
    """The day, as rows with an accessor keep it, from 1970; 0 for none."""


class Numbers(NamedTuple):
    """What a formula computes one step with; the kernels take them as float32."""

    rate: float
    weight_decay: float = 0.0
    """Times the value it is added to the gradient before the formula sees it."""
    constants: tuple[float, ...] = ()
    """At most ``MAX_CONSTANTS``."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Formula:
    """How a value and its state step.

    ``update(step, value, states, grad, functions)`` returns the new value and a tuple of the
    new states. ``step`` has ``rate`` and ``constants``, filled up with zeros to
    ``MAX_CONSTANTS``; ``functions`` = (square_root, cut), ``cut(x, limit)`` being what of ``x``
    lies within -limit..limit.
    """

    update: Callable[..., Any]
    numbers: Callable[[Constants, Moment], Numbers]
    row_rate: Callable[..., Any] | None = None
    """``row_rate(step, state, mean_square, functions)`` returns the rate that ``update`` takes
    for all values of a row, which then have no states of their own, and the row's new state.
    ``mean_square`` is of the row's gradient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchForm:
    """The torch optimizers whose numbers a rule has.

    Classes are named, as "torch.optim.Adam", so that no process but a worker loads torch.
    """

    classes: tuple[str, ...]
    rows_only: tuple[str, ...] = ()
    """Those for embeddings alone."""
    constants: Callable[[Mapping[str, Any]], Constants | None]
    """Returns the constants of a parameter group's options; None if the group has another
    rule. ``weight_decay`` is among the options, 0 by default."""
    allows: frozenset[str] = frozenset()
    """Options that other optimizers must not have and that are this one's nature."""
    kernels_only: bool = False
    """Whether a worker's rows are stepped by kernels alone, since torch's own step has other
    states for them, or none."""


def _first(_constants: Constants, _sparse: bool) -> int:  # noqa: FBT001 - of Rule.choose
    return 0


def _pass(_constants: Constants) -> Broken | None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """How the rows of a table count how they are used, and which of their values learn.

    A row's first values are counts: what is pushed for them is added as it is, and no
    learning rate or share of a worker changes it.
    """

    num_counts: int
    """Values of a row that are counts, the first ones."""
    columns: Callable[[Constants], tuple[Column, ...]]
    """Returns what stands beside a row's values."""
    drawn: Callable[[Constants, int], int]
    """Returns how many of a new row's values, behind the counts, its initializer makes, of
    (constants, dim). The others are 0."""
    unscaled: Callable[[Constants, int], int]
    """Returns how many of the first numbers that are pushed for a row are sums over workers,
    which no share of a worker scales, of (constants, dim)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rule:
    """One optimizer."""

    name: str
    """Of the rule, on the wire and in checkpoints."""
    constants: tuple[Constant, ...]
    """In the order of the wire."""
    columns: tuple[Column, ...] = ()
    """Those of values first; two at most."""
    first_state: str | None = None
    """The constant that every number of a new row's state is; None for zeros."""
    formulas: tuple[Formula, ...] = ()
    """None where rows have statistics: kernels of their own step them."""
    statistics: Statistics | None = None
    """Of rows with an accessor; such a rule has no dense tables."""
    choose: Callable[[Constants, bool], int] = _first
    """Returns which of the formulas steps: of (constants, whether the table is sparse)."""
    check: Callable[[Constants], Broken | None] = _pass
    """Looks at constants that go together, each within its range."""
    lazy_check: Callable[[Constants], Broken | None] = _pass
    """As ``check``, where the table is sparse: only rows with gradients step."""
    pace: Pace = "none"
    adds: bool = False
    """Whether what is pushed is added as it is, without a learning rate."""
    counts_steps: bool = False
    """Whether torch's optimizer keeps the number of steps beside each parameter's states."""
    torch: TorchForm | None = None
    """None for a rule that stands for no optimizer."""

    def __post_init__(self) -> None:
        per_row = [column.per_row for column in self.columns]
        assert per_row == sorted(per_row), "columns of values are first"
        assert len(per_row) <= 2, "the kernels have two columns at most"
        assert bool(self.formulas) != bool(self.statistics), "one of them steps rows"
        if any(formula.row_rate for formula in self.formulas):
            assert per_row == [True], "a row's rate needs the row's column, and no other"

    def columns_of(self, constants: Constants) -> tuple[Column, ...]:
        """Return the columns of a table with these constants."""
        return self.columns if self.statistics is None else self.statistics.columns(constants)

    def initial(self, constants: Constants) -> float:
        """Return what every number of a new row's state is."""
        return 0.0 if self.first_state is None else float(constants[self.first_state])
