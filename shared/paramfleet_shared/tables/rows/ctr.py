"""Rows with an accessor: where their numbers are, and which have expired or are miscounted."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.stepping.ctr import (
    CtrLayout,
    CtrTable,
    expiry_limits_of,
    list_expired,
    scoring_of,
)
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["are_expired", "ctr_layout_of", "num_miscounted"]


def are_expired(
    spec: OptimizerSpec, table: CtrTable, slots: NDArray[np.int64], *, day: int
) -> NDArray[np.bool_]:
    """Return which of the rows at slots, int64 [n], have expired: bool [n].

    Args:
        spec: Their rule.
        table: The rows.
        slots: Where they are.
        day: Today, from 1970; 0 for none: then only a row's score counts.
    """
    found = np.empty(slots.size, np.bool_)
    list_expired(scoring_of(spec), table, slots, day, expiry_limits_of(spec), found)
    return found


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
