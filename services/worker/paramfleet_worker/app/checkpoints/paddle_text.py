"""How Paddle's accessors lay out a row of their table text.

A line is a key, as a whole number without a sign, and numbers behind it, divided by blanks::

    slot unseen_days delta_score show click embed_w embed_state... [embedx_w... embedx_state...]

That is the order of ``CtrCommonAccessor`` and ``SparseAccessor``; others have the numbers in
other places. A row that wasn't extended lacks the part in brackets. Of a table without an
accessor a line is a key and the row's values.

Paddle writes six digits of a number, which loses; nine are a float32 to the bit.

Shape legend: n = rows, D = row width, m = weights behind the first one, W = floats of state.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from paramfleet_shared.checkpoint.layers import Layers
from paramfleet_shared.checkpoint.manifest import MANIFEST, FilePart, ManifestError
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.ctr.accessor import NUM_SHORT, STATISTICS
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.config import PaddleAccessor, PaddleRule

__all__ = [
    "ACCESSORS",
    "PADDLE_RULES",
    "USUAL_RULE",
    "Accessor",
    "CountedRows",
    "day_of",
    "key_of",
    "lengths_of",
    "lines_of",
]

_NO_SLOT = -1
"""Of a row of which no slot is known, in Paddle, too."""


class Accessor(NamedTuple):
    """Where a row of Paddle's table text has its values.

    The numbers behind the key are: ``before`` ones, the first value, then states of its rule
    and other numbers, and last, where the row has them, ``between`` ones and m values. The last
    four before the first value are days, ``delta_score``, show and click.
    """

    before: int
    states_last: bool
    """Whether the states of the m values come behind them."""
    others: int
    """Numbers behind the first value's states, before the part of the m values."""


_COMMON = Accessor(before=5, states_last=True, others=0)

ACCESSORS: dict[PaddleAccessor, Accessor] = {
    "SparseAccessor": _COMMON,
    "CtrCommonAccessor": _COMMON,
    "CtrDoubleAccessor": Accessor(before=4, states_last=False, others=1),
    "CtrDymfAccessor": Accessor(before=4, states_last=False, others=2),
}
"""By Paddle's names."""

PADDLE_RULES: dict[PaddleRule, Callable[[int], int]] = {
    "SparseNaiveSGDRule": lambda _: 0,
    "SparseAdaGradSGDRule": lambda _: 1,
    "SparseAdaGradV2SGDRule": lambda _: 1,
    "StdAdaGradSGDRule": lambda width: width,
    "SparseAdamSGDRule": lambda width: 2 * width + 2,
    "SparseSharedAdamSGDRule": lambda _: 4,
}
"""How many numbers of state a rule of Paddle keeps for so many values."""

USUAL_RULE: PaddleRule = "SparseAdamSGDRule"
"""What Paddle takes where nothing is set."""


def lengths_of(
    num_more: int, accessor: Accessor, rules: tuple[PaddleRule, PaddleRule]
) -> dict[int, int]:
    """Return how many numbers rows may have, and where their other values begin; 0 for none.

    Args:
        num_more: m.
        accessor: Which has laid them out.
        rules: Of the first value, and of the others.
    """
    short = accessor.before + 1 + PADDLE_RULES[rules[0]](1) + accessor.others
    found = {short: 0}
    if num_more:
        rest = PADDLE_RULES[rules[1]](num_more)
        found[short + rest + num_more] = short if accessor.states_last else short + rest
    return found


def key_of(id_: int) -> int:
    """Return an id as Paddle's key, which has no sign."""
    return id_ % (1 << 64)


@dataclass(frozen=True, slots=True)
class CountedRows:
    """The rows of a table with an accessor, in Paddle's order and in that of a checkpoint."""

    spec: TableSpec
    today: int
    """Which day the table counts by saves; 0 if it has dates."""

    @property
    def num_more(self) -> int:
        """Return m."""
        return self.spec.dim - NUM_SHORT

    @property
    def rules(self) -> tuple[PaddleRule, PaddleRule]:
        """Return the rules of the first value, and of the others."""
        constants = self.spec.optimizer.constants
        return constants["embed_rule"], constants["embedx_rule"]

    @property
    def width(self) -> int:
        """Return the numbers of ``row_of``: D + W."""
        return self.spec.dim + RowLayout.of(self.spec).states.pitch

    def row_of(
        self, numbers: list[float], accessor: Accessor, rules: tuple[PaddleRule, PaddleRule]
    ) -> list[float]:
        """Return the numbers of a line as a checkpoint has them: values, then states.

        Where the table has other rules than the line, their states begin anew.

        Args:
            numbers: As many as one of ``lengths_of`` says.
            accessor: Which has laid them out.
            rules: Of its two parts.

        Raises:
            ValueError: if its days are none.
        """
        start, more = lengths_of(self.num_more, accessor, rules)[len(numbers)], self.num_more
        first, rest = (PADDLE_RULES[rule](n) for rule, n in zip(rules, (1, more), strict=True))
        unseen, delta, show, click, embed = numbers[accessor.before - 4 : accessor.before + 1]
        values = numbers[start : start + more] if start else [0.0] * more
        states = RowLayout.of(self.spec).states.first.tolist()
        own = [PADDLE_RULES[rule](n) for rule, n in zip(self.rules, (1, more), strict=True)]
        if rules[0] == self.rules[0]:
            states[: own[0]] = numbers[accessor.before + 1 : accessor.before + 1 + first]
        if start and rules[1] == self.rules[1]:
            at = start + more if accessor.states_last else start - rest
            states[own[0] : own[0] + own[1]] = numbers[at : at + rest]
        states[-len(STATISTICS) :] = [delta, self._day_of(unseen), float(bool(start))]
        return [show, click, embed, *values, *states]

    def _day_of(self, unseen: float) -> float:
        """Return the day on which a row was seen, of what a line says of it.

        It says the day itself, as Fleet's newer accessor does, or a few days since.

        Raises:
            ValueError: if it is negative or not finite: such a row would never fade.
        """
        if not 0 <= unseen < math.inf:
            problem = f"its unseen_days must be 0 or more, not {unseen:g}"
            raise ValueError(problem)
        is_day = unseen >= self.spec.optimizer.constants["delete_after_unseen_days"]
        if self.today:
            return max(1.0, self.today - unseen)
        return unseen if is_day else 0.0

    def lines(self, part: FilePart) -> Iterator[list[float]]:
        """Yield the numbers of rows in the order of ``CtrCommonAccessor``.

        Args:
            part: Rows of a checkpoint, with their states.
        """
        more = self.num_more
        own = [PADDLE_RULES[rule](n) for rule, n in zip(self.rules, (1, more), strict=True)]
        rows = zip(part.values.tolist(), part.states.tolist(), strict=True)
        for (show, click, embed, *values), states in rows:
            delta, seen, is_extended = states[-len(STATISTICS) :]
            unseen = self.today - seen if self.today else seen
            first, rest = states[: own[0]], states[own[0] : sum(own)]
            tail = [*values, *rest] if is_extended else []
            yield [_NO_SLOT, unseen, delta, show, click, embed, *first, *tail]


def day_of(layers: Layers, table: str) -> int:
    """Return which day a table counts by saves, as a checkpoint has it; 0 if it counts none.

    Raises:
        ManifestError: if the manifest describes it wrongly.
    """
    folder, manifest = layers.top
    try:
        return 0 if manifest.progress is None else manifest.progress.days.get(table, 0)
    except (TypeError, ValueError) as error:
        rule = f"is malformed: the progress: {error!r}"
        raise ManifestError(path=str(folder / MANIFEST), rule=rule) from error


def lines_of(part: FilePart, counted: CountedRows | None) -> Iterator[str]:
    """Yield rows as lines of text, each a float32 to the bit.

    Args:
        part: Rows of a checkpoint, with their states.
        counted: Of a table with an accessor: how they are laid out.
    """
    ids = part.ids
    assert ids is not None, "rows have ids"
    rows = iter(part.values.tolist()) if counted is None else counted.lines(part)
    for id_, row in zip(ids.tolist(), rows, strict=True):
        numbers = " ".join(f"{number:.9g}" for number in row)
        yield f"{key_of(id_)} {numbers}\n"
