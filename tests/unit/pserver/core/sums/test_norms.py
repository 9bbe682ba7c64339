"""Norms of the merged gradient, of what one server holds."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_pserver.core.sums.norms import (
    LARGEST,
    GradientPart,
    NormPart,
    NormUse,
    StepNorms,
    merged_power,
)
from paramfleet_shared.errors.served import NormMismatchError
from paramfleet_shared.values.ids import Rank

ADA, BOB, EVE = Rank(0), Rank(1), Rank(2)
FIRST, SECOND = NormUse(0, 0), NormUse(1, 0)


def dense(*values: float, weight: float = 1.0, table: str = "flat") -> NormPart:
    return NormPart(weight, {table: GradientPart(np.array(values, np.float32), None)})


def sparse(rows: dict[int, list[float]], *, weight: float = 1.0) -> NormPart:
    ids = np.array(list(rows), np.int64)
    values = np.array(list(rows.values()), np.float32).reshape(len(ids), -1)
    return NormPart(weight, {"rows": GradientPart(values, ids)})


def merged(parts: dict[Rank, NormPart], *, sums: bool) -> NDArray[np.float64]:
    """Return the merged gradient of rows, as the test computes it."""
    total = sum(part.weight for part in parts.values())
    found: dict[int, NDArray[np.float64]] = {}
    for part in parts.values():
        gradient = part.tables["rows"]
        assert gradient.ids is not None
        scale = 1.0 if sums else part.weight / total
        for row, values in zip(gradient.ids.tolist(), gradient.values, strict=True):
            found[row] = found.get(row, np.zeros(2)) + scale * values.astype(np.float64)
    return np.concatenate(list(found.values()))


@pytest.mark.parametrize("order", [2.0, 1.0, 3.5, LARGEST])
@pytest.mark.parametrize("sums", [False, True])
def test_rows_that_several_workers_have_are_merged_before_their_norm(
    order: float, sums: bool
) -> None:
    draw = np.random.default_rng(0)
    parts = {
        rank: sparse(
            {int(row): draw.normal(size=2).tolist() for row in draw.permutation(40)[:25]},
            weight=weight,
        )
        for rank, weight in ((ADA, 3.0), (BOB, 1.0), (EVE, 4.0))
    }

    found = merged_power(parts, order, sums=sums)

    values = np.abs(merged(parts, sums=sums))
    expected = values.max() if order == LARGEST else (values**order).sum()
    assert found == pytest.approx(expected, rel=1e-5)


def test_all_tables_count_and_who_has_no_weight_does_not() -> None:
    parts = {
        ADA: NormPart(1.0, {**dense(3.0, 4.0).tables, **sparse({7: [12.0]}).tables}),
        BOB: dense(math.nan, 0.0, weight=0.0),
    }

    assert merged_power(parts, 2.0, sums=False) == 169.0
    assert merged_power(parts, LARGEST, sums=True) == 12.0
    assert merged_power({ADA: NormPart(1.0, {})}, 2.0, sums=False) == 0.0
    empty = GradientPart(np.empty((0, 2), np.float32), np.empty(0, np.int64))
    assert merged_power({ADA: NormPart(1.0, {"rows": empty})}, LARGEST, sums=False) == 0.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("order", [2.0, LARGEST])
def test_what_isnt_finite_stays_so(wrong: float, order: float) -> None:
    parts = {ADA: dense(1.0, wrong), BOB: dense(1.0, 1.0)}

    assert not math.isfinite(merged_power(parts, order, sums=False))


def test_a_norm_is_computed_once_and_kept_until_the_step_is_over() -> None:
    norms = StepNorms()
    norms.add(FIRST, ADA, dense(1.0), 2.0)
    assert norms.missing(FIRST, (ADA, BOB)) == [BOB]
    assert (norms.lacks(BOB), norms.lacks(ADA)) == (True, False)
    norms.add(FIRST, BOB, dense(2.0), 2.0)
    norms.add(FIRST, BOB, dense(5.0), 2.0)

    assert norms.open() == [FIRST]
    parts, order = norms.take(FIRST)
    assert (parts[BOB].tables["flat"].values.tolist(), order) == ([2.0], 2.0)
    norms.add(FIRST, ADA, dense(1.0), 2.0)
    assert norms.open() == [], "it is being computed"
    norms.note(FIRST, 7.0)

    assert norms.of(FIRST) == 7.0
    norms.clear()
    assert norms.of(FIRST) is None


def test_a_worker_asks_for_one_norm_at_a_time() -> None:
    norms = StepNorms()
    norms.add(FIRST, ADA, dense(1.0), 2.0)

    norms.add(SECOND, ADA, dense(1.0), 2.0)

    assert norms.open() == [SECOND]
    assert not norms.lacks(ADA)


def test_workers_that_clip_other_gradients_are_told() -> None:
    norms = StepNorms()
    norms.add(FIRST, ADA, dense(1.0, 2.0), 2.0)

    for part, order, says in (
        (dense(1.0), 2.0, "1 and 2 values"),
        (dense(1.0, 2.0), LARGEST, "norm_type inf and 2"),
        (
            NormPart(1.0, {"flat": sparse({1: [1.0]}).tables["rows"]}),
            2.0,
            "table 'flat' of other widths",
        ),
    ):
        with pytest.raises(NormMismatchError, match=says):
            norms.add(FIRST, BOB, part, order)
    norms.add(FIRST, BOB, sparse({1: [1.0]}), 2.0)
    assert norms.missing(FIRST, (ADA, BOB)) == []
