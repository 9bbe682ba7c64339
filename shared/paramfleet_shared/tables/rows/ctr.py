"""Rows with an accessor: where their numbers are, what they are worth, which are miscounted."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.stepping.ctr import (
    CtrLayout,
    CtrTable,
    expiry_limits_of,
    scoring_of,
    weigh_ctr_rows,
)
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["NUM_SEEN", "ctr_layout_of", "num_miscounted", "scores_of"]

NUM_SEEN = 2
"""Numbers that copies of a row need beside its value: the day it was seen, and whether it has
its embedx."""


def scores_of(
    spec: OptimizerSpec, table: CtrTable, slots: NDArray[np.int64], *, day: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the scores of the rows at slots, int64 [n], and which have expired: both [n].

    Args:
        spec: Their rule.
        table: The rows.
        slots: Where they are.
        day: Today, from 1970; 0 for none: then only a row's score counts.
    """
    weighed = np.empty(slots.size, np.float32), np.empty(slots.size, np.bool_)
    weigh_ctr_rows(scoring_of(spec), table, slots, day, expiry_limits_of(spec), weighed)
    return weighed


def num_miscounted(pushed: NDArray[np.float32]) -> int:
    """Return how many rows of what is pushed, show and click first, no use of them makes."""
    return int(((pushed[:, 0] <= 0) | (pushed[:, 1] < 0)).sum())


def ctr_layout_of(spec: OptimizerSpec, layout: RowLayout) -> CtrLayout:
    """Return where the numbers of a row are.

    Args:
        spec: Its rule.
        layout: Of the row, which has the columns of the rule and may have others.
    """
    spans = layout.spans

    def places_of(part: str) -> tuple[int, int]:
        rule = PART_RULES[spec.constants[f"{part}_rule"]]
        first, second = (
            int(spans[f"{part}_{states[0].name}"].start) if states else 0
            for states in (rule.of_weights, rule.of_part)
        )
        return first, second

    return CtrLayout(
        layout.columns[0].width,
        layout.pitch,
        places_of("embed"),
        places_of("embedx"),
        spans["delta_score"].start,
        spans["seen_day"].start,
        spans["is_extended"].start,
    )
