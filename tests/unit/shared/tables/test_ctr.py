"""Rows with an accessor: Fleet's numbers, and a second implementation in plain Python."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.rows.evicting import KEY_BITS, AsOf
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import (
    InitializerSpec,
    OptimizerSpec,
    TableSpec,
    TableSpecError,
)

ZEROS = InitializerSpec(kind="zeros")
DRAWN = InitializerSpec(kind="uniform", low=-0.5, high=0.5)
RULES = list(PART_RULES)


def table(dim: int = 5, initializer: InitializerSpec = ZEROS, **constants: Any) -> TableSpec:
    return TableSpec(
        name="clicks",
        kind="sparse",
        dim=dim,
        seed=7,
        initializer=initializer,
        optimizer=OptimizerSpec(rule="ctr", **constants),
    )


def both(name: str, value: Any) -> dict[str, Any]:
    return {f"embed_{name}": value, f"embedx_{name}": value}


def push(
    shard: SparseShard, ids: list[int], rows: list[list[float]], lr: float = 0.0, **how: Any
) -> None:
    numbers = np.array(rows, np.float32).reshape(len(ids), shard.spec.dim)
    shard.push(np.array(ids, np.int64), numbers, lr=lr, step=1, **how)


def expired(shard: SparseShard, start: int = 0, count: int = 9, *, day: int = 0) -> list[int]:
    """Return the ids of rows that have expired, in order of places."""
    ids, keys = shard.valued(start, count, AsOf(day))
    found: list[int] = ids[keys < EXPIRED].tolist()
    return found


def columns(shard: SparseShard, row: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return a row's numbers by the names of its columns."""
    _, values, states = shard.export(0, shard.num_slots)
    spans = RowLayout.of(shard.spec).states.spans
    found = {name: states[row][span] for name, span in spans.items()}
    return {"value": values[row], **found}


def values(shard: SparseShard, ids: list[int], *, create: bool = False) -> NDArray[np.float32]:
    out = np.full((len(ids), shard.spec.dim), np.nan, np.float32)
    shard.pull(np.array(ids, np.int64), out, create=create)
    return out


def test_adagrad_has_fleets_numbers() -> None:
    shard = SparseShard(table(dim=3))
    seen = []
    for _ in range(3):
        push(shard, [5], [[2, 0, 0.6]])
        row = columns(shard)
        seen.append((row["value"][2], row["embed_g2sum"][0]))

    weights, sums = zip(*seen, strict=True)
    np.testing.assert_allclose(weights, [-0.015, -0.0297799399, -0.0443492271], rtol=1e-6)
    np.testing.assert_allclose(sums, [0.09, 0.18, 0.27], rtol=1e-6)


def test_adam_has_fleets_numbers() -> None:
    shard = SparseShard(table(dim=3, embed_rule="SparseAdamSGDRule", embed_learning_rate=0.001))
    seen = []
    for _ in range(3):
        push(shard, [5], [[2, 0, 0.6]])
        seen.append(columns(shard)["value"][2])

    np.testing.assert_allclose(seen, [-0.0009999995, -0.0019999991, -0.0029999988], rtol=1e-5)


def test_shared_adam_has_fleets_numbers() -> None:
    rule: dict[str, Any] = {
        "embedx_rule": "SparseSharedAdamSGDRule",
        "embedx_learning_rate": 0.001,
    }
    shard = SparseShard(table(dim=5, embedx_threshold=0.0, **rule))
    push(shard, [5], [[1, 0, 0, 0.6, -0.2]])  # which makes embedx, and it learns from the next
    seen = []
    for _ in range(2):
        push(shard, [5], [[1, 0, 0, 0.6, -0.2]])
        seen.append(columns(shard))

    expected = [-0.0009999995, 0.0009999984]
    np.testing.assert_allclose(seen[0]["value"][3:], expected, rtol=1e-5)
    np.testing.assert_allclose(seen[0]["embedx_exp_avg"], [0.02], rtol=1e-6)
    np.testing.assert_allclose(seen[0]["embedx_exp_avg_sq"], [0.0002], rtol=1e-4)
    np.testing.assert_allclose(seen[1]["value"][3:], [-0.0017757655, 0.0010303904], rtol=1e-5)


def test_a_push_counts_and_scores() -> None:
    shard = SparseShard(table(dim=3))
    push(shard, [5], [[3, 1, 0]])

    row = columns(shard)
    np.testing.assert_array_equal(row["value"][:2], [3, 1])
    np.testing.assert_allclose(row["delta_score"], [1.2], rtol=1e-6)
    push(shard, [5], [[3, 1, 0]])
    np.testing.assert_allclose(columns(shard)["delta_score"], [2.4], rtol=1e-6)


def test_the_push_that_extends_a_row_leaves_embedx_at_its_first_values() -> None:
    spec = table(dim=7, initializer=DRAWN, embedx_threshold=0.0)
    shard = SparseShard(spec)
    assert not values(shard, [5]).any(), "an id without a row reads as zeros"

    push(shard, [5], [[1, 0, 0.5, 1, 1, 1, 1]])

    plain = TableSpec(name="clicks", kind="sparse", dim=7, seed=7, initializer=DRAWN)
    expected = initial_rows(plain, np.array([5], np.int64))[0, 3:]
    np.testing.assert_array_equal(values(shard, [5])[0, 3:], expected)
    assert columns(shard)["is_extended"] == [1]

    push(shard, [5], [[1, 0, 0.5, 1, 1, 1, 1]])
    assert (values(shard, [5])[0, 3:] < expected).all(), "it learns from the next push on"


def test_a_row_grows_when_its_score_reaches_the_threshold_and_stays_so() -> None:
    shard = SparseShard(table(dim=5, initializer=DRAWN, embedx_threshold=1.0))
    for num in range(1, 13):
        push(shard, [5], [[1, 0, 0, 0, 0]])
        assert bool(columns(shard)["is_extended"][0]) == (num >= 10), num
    assert values(shard, [5])[0, 3:].all()


def test_a_pull_creates_nothing() -> None:
    shard = SparseShard(table(initializer=DRAWN))

    assert not values(shard, [1, 2, 3], create=True).any()
    assert shard.num_rows == 0


def test_without_zero_init_the_first_weight_is_drawn_and_nothing_else() -> None:
    shard = SparseShard(table(dim=4, initializer=DRAWN, zero_init=False))

    before = values(shard, [1, 2])
    assert before[:, 2].all()
    assert not before[:, [0, 1, 3]].any()

    push(shard, [1], [[1, 0, 0, 0]])
    np.testing.assert_array_equal(values(shard, [1])[0, 2:], before[0, 2:])


def test_weights_stay_within_their_bounds() -> None:
    shard = SparseShard(table(dim=3, embed_min_bound=-0.02, embed_max_bound=0.01))
    for _ in range(5):
        push(shard, [1, 2], [[1, 0, 5], [1, 0, -5]])

    np.testing.assert_allclose(values(shard, [1, 2])[:, 2], [-0.02, 0.01], rtol=1e-6)


def test_without_show_scale_gradients_are_summed() -> None:
    shard = SparseShard(table(dim=3, show_scale=False, **both("initial_g2sum", 3.0)))
    push(shard, [1], [[4, 0, 0.5]])

    np.testing.assert_allclose(values(shard, [1])[0, 2], -0.05 * 0.5, rtol=1e-6)


def test_a_part_may_follow_the_learning_rate_of_the_optimizer() -> None:
    shard = SparseShard(table(dim=3, embed_rule="SparseNaiveSGDRule", embed_scheduled=True))
    push(shard, [1], [[1, 0, 1]], lr=0.25)

    assert values(shard, [1])[0, 2] == -0.25


@pytest.mark.parametrize("unique", [True, False])
def test_what_comes_twice_for_an_id_is_one_push(unique: bool) -> None:
    rng = np.random.default_rng(3)
    once, apart = (SparseShard(table(dim=5, embedx_threshold=0.3)) for _ in range(2))
    for _ in range(4):
        ids = rng.integers(0, 6, 20).tolist()
        rows = np.abs(rng.standard_normal((20, 5))).astype(np.float32)
        summed = {each: np.zeros(5, np.float32) for each in ids}
        for each, row in zip(ids, rows, strict=True):
            summed[each] = summed[each] + row
        push(apart, ids, rows.tolist())
        push(once, list(summed), [row.tolist() for row in summed.values()], unique=unique)

    known = sorted(set(range(6)))
    np.testing.assert_array_equal(values(once, known), values(apart, known))


TODAY = 20_000
EXPIRED = 1 << (KEY_BITS - 1)
"""Keys of rows that have expired are below."""


def life_of(show: int, click: int, *, days: int = 200) -> int | None:
    """Return on which day after its push a row expires; None if it doesn't."""
    shard = SparseShard(table(dim=3))
    push(shard, [5], [[show, click, 0]], now=TODAY)
    return next((n for n in range(days) if expired(shard, day=TODAY + n)), None)


@pytest.mark.parametrize(
    ("show", "click", "day"), [(8, 0, 1), (9, 0, 6), (1, 1, 12), (2, 2, 31), (100, 10, 31)]
)
def test_a_row_expires_when_fleet_would_delete_it(show: int, click: int, day: int) -> None:
    assert life_of(show, click) == day


def test_counts_fade_as_in_fleet_where_days_do_not_end_a_row() -> None:
    shard = SparseShard(table(dim=3, delete_after_unseen_days=10_000))
    push(shard, [1, 2], [[2, 2, 0], [10, 10, 0]], now=TODAY)
    ends: dict[int, int] = {}
    for after in range(200):
        for each in expired(shard, day=TODAY + after):
            ends.setdefault(each, after)
    assert ends == {1: 46, 2: 126}


def test_a_row_that_is_seen_again_has_what_is_left_and_more() -> None:
    shard = SparseShard(table(dim=3, show_click_decay_rate=0.5))
    push(shard, [5], [[8, 4, 0]], now=TODAY)
    push(shard, [5], [[1, 1, 0]], now=TODAY + 2)

    row = columns(shard)
    assert row["value"][:2].tolist() == [8 / 4 + 1, 4 / 4 + 1]
    assert row["seen_day"] == [TODAY + 2]
    assert row["delta_score"] == pytest.approx([0.4 + 4 + 1])

    push(shard, [5], [[1, 0, 0]], now=TODAY)  # of a worker that is behind
    assert columns(shard)["value"][:2].tolist() == [4, 2]
    assert columns(shard)["seen_day"] == [TODAY + 2]


def test_without_a_date_nothing_fades_and_scores_alone_count() -> None:
    shard = SparseShard(table(dim=3))
    push(shard, [1, 2], [[7, 0, 0], [9, 0, 0]])
    assert expired(shard) == [1]
    assert expired(shard, day=TODAY) == [1], "it isn't known when they were seen"


def test_expired_rows_are_listed_by_places_of_rows_that_are_there() -> None:
    shard = SparseShard(table(dim=3))
    push(shard, list(range(10)), [[1, 0, 0]] * 10)
    shard.release(shard.remove(np.array([3, 4], np.int64)))

    assert expired(shard, 0, 5) == [0, 1, 2]
    assert expired(shard, 5, 99) == [5, 6, 7, 8, 9]
    assert expired(SparseShard(TableSpec(name="t", kind="sparse"))) == []


# A second implementation, row by row, in float64.


class Reference:
    """A row, stepped by formulas written down anew from Paddle's."""

    def __init__(self, spec: TableSpec, first: NDArray[np.float32]) -> None:
        self.constants, self.first = spec.optimizer.constants, first.astype(float)
        self.value = np.zeros(spec.dim)
        self.is_extended = False
        self.parts = {
            "embed": self._states("embed", 1),
            "embedx": self._states("embedx", spec.dim - 3),
        }

    def _states(self, part: str, num: int) -> dict[str, Any]:
        powers = self.constants[f"{part}_beta1_decay_rate"]
        squares = self.constants[f"{part}_beta2_decay_rate"]
        zeros = np.zeros(num)
        return {"G": 0.0, "g": zeros, "m": zeros, "v": zeros, "p": powers, "q": squares}

    def push(self, row: NDArray[np.float32], lr: float) -> None:
        show, click = float(row[0]), float(row[1])
        self.value[:2] += row[:2]
        self._step("embed", slice(2, 3), row[2:3].astype(float), show, lr)
        if self.is_extended:
            self._step("embedx", slice(3, None), row[3:].astype(float), show, lr)
            return
        shows, clicks = self.value[:2]
        score = (shows - clicks) * self.constants["nonclk_coeff"]
        score += clicks * self.constants["click_coeff"]
        if score >= self.constants["embedx_threshold"]:
            self.is_extended = True
            self.value[3:] = self.first[3:]
        del click

    def _step(
        self, part: str, where: slice, grad: NDArray[Any], show: float, lr: float
    ) -> None:
        known = {
            name.removeprefix(f"{part}_"): value
            for name, value in self.constants.items()
            if name.startswith(f"{part}_")
        }
        rate = lr if known["scheduled"] else known["learning_rate"]
        rule, s, w = known["rule"], self.parts[part], self.value[where]
        q = grad / show if self.constants["show_scale"] and "AdaGrad" in rule else grad
        first = known["initial_g2sum"]
        keep, keep2 = known["beta1_decay_rate"], known["beta2_decay_rate"]
        eps = known["ada_epsilon"]
        if rule == "SparseNaiveSGDRule":
            w = w - rate * q
        elif rule == "SparseAdaGradSGDRule":
            w = w - rate * q * math.sqrt(first / (first + s["G"]))
            s["G"] += float((q * q).sum()) / len(q)
        elif rule == "StdAdaGradSGDRule":
            w = w - rate * q * np.sqrt(first / (first + s["g"]))
            s["g"] = s["g"] + q * q
        elif rule == "SparseAdaGradV2SGDRule":
            s["G"] += float((q * q).sum()) / len(q)
            w = w - rate * q / (math.sqrt(s["G"]) + 1e-8)
        else:
            a = rate * math.sqrt(1 - s["q"]) / (1 - s["p"])
            m, v = keep * s["m"] + (1 - keep) * q, keep2 * s["v"] + (1 - keep2) * q * q
            w = w - a * m / (np.sqrt(v) + eps)
            if rule == "SparseSharedAdamSGDRule":
                m, v = np.full_like(m, m.mean()), np.full_like(v, v.mean())
            s["m"], s["v"] = m, v
            s["p"], s["q"] = s["p"] * keep, s["q"] * keep2
        self.value[where] = np.clip(w, known["min_bound"], known["max_bound"])


@pytest.mark.parametrize("embed", RULES)
@pytest.mark.parametrize("embedx", RULES)
def test_every_rule_steps_as_its_formula_says(embed: str, embedx: str) -> None:
    chosen = {"embed_rule": embed, "embedx_rule": embedx, "embedx_scheduled": True}
    spec = table(dim=8, initializer=DRAWN, embedx_threshold=1.5, **chosen)
    shard, rng = SparseShard(spec), np.random.default_rng(11)
    plain = TableSpec(name="clicks", kind="sparse", dim=8, seed=7, initializer=DRAWN)
    ids = np.arange(20, dtype=np.int64) << 33
    rows = [Reference(spec, first) for first in initial_rows(plain, ids)]
    for _ in range(12):
        some = rng.permutation(20)[:14]
        numbers = rng.standard_normal((14, 8)).astype(np.float32)
        numbers[:, 0] = rng.integers(1, 4, 14)
        numbers[:, 1] = np.minimum(rng.integers(0, 2, 14), numbers[:, 0])
        shard.push(ids[some], numbers, lr=0.02, step=1, unique=True)
        for place, row in zip(some, numbers, strict=True):
            rows[place].push(row, lr=0.02)

    found = values(shard, ids.tolist())
    expected = np.array([row.value for row in rows])
    assert sum(row.is_extended for row in rows) > 0
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"embed_rule": "Adagrad"}, "optimizer.embed_rule"),
        ({"embed_min_bound": 2.0, "embed_max_bound": 2.0}, "optimizer.embed_max_bound"),
        ({"embed_initial_g2sum": 0.0}, "optimizer.embed_initial_g2sum"),
        ({"show_scale": 1}, "optimizer.show_scale"),
        ({"nonclk_coeff": math.nan}, "optimizer.nonclk_coeff"),
    ],
)
def test_a_wrong_constant_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(TableSpecError) as raised:
        table(**change)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [({"dim": 2}, "dim"), ({"storage": "float16"}, "storage")],
)
def test_a_table_that_can_have_no_accessor_is_named(change: dict[str, Any], field: str) -> None:
    facts: dict[str, Any] = {"name": "clicks", "kind": "sparse", "dim": 5}
    with pytest.raises(TableSpecError) as raised:
        TableSpec(**facts | change, optimizer=OptimizerSpec(rule="ctr"))
    assert raised.value.field == field


def test_a_dense_table_has_no_accessor() -> None:
    with pytest.raises(TableSpecError) as raised:
        TableSpec(name="d", kind="dense", size=4, optimizer=OptimizerSpec(rule="ctr"))
    assert raised.value.field == "optimizer.rule"


def test_a_spec_with_an_accessor_goes_over_the_wire() -> None:
    spec = table(embedx_rule="SparseAdamSGDRule", embedx_threshold=2.5)

    assert TableSpec.from_wire(spec.to_wire()) == spec


def add(shard: SparseShard, rows: dict[int, list[float]], *grown: int, **how: Any) -> None:
    ids = np.array(list(rows), np.int64)
    shard.add(ids, np.array(list(rows.values()), np.float32), np.isin(ids, grown), **how)


def test_what_is_added_counts_as_what_is_pushed() -> None:
    spec = table(initializer=DRAWN, embedx_threshold=1.0, **both("rule", "SparseNaiveSGDRule"))
    pushed, added = SparseShard(spec), SparseShard(spec)
    for day, show in enumerate((3.0, 4.0, 8.0), start=1):
        push(pushed, [5], [[show, 1, 0, 0, 0]], now=100 * day)
        add(added, {5: [show, 1, 0, 0, 0]}, now=100 * day)

    have, want = columns(added), columns(pushed)
    assert have.keys() == want.keys()
    for name, column in want.items():
        np.testing.assert_array_equal(have[name], column)


def test_a_row_grows_before_it_is_added_to() -> None:
    shard = SparseShard(table(initializer=DRAWN, embedx_threshold=2.0))
    first = initial_rows(table(initializer=DRAWN, zero_init=False), np.array([5, 6, 7]))
    assert first.any()
    learned = [0.25, 0.5, -0.5]

    add(shard, {5: [1, 0, *learned], 6: [1, 0, *learned], 7: [2, 2, *learned]}, 6)

    rows = shard.read_counted(np.array([5, 6, 7], np.int64))
    assert rows[:, -1].tolist() == [0, 1, 1], "6 has grown elsewhere, and 7 by its clicks"
    np.testing.assert_array_equal(rows[:, 2], [0.25] * 3)
    assert not rows[0, 3:5].any()
    plain = TableSpec(name="clicks", kind="sparse", dim=5, seed=7, initializer=DRAWN)
    drawn = initial_rows(plain, np.array([6, 7], np.int64))[:, 3:]
    np.testing.assert_array_equal(rows[1:, 3:5], drawn + np.array([0.5, -0.5], np.float32))


def test_what_is_added_stays_within_the_bounds_and_a_day_needs_a_show() -> None:
    shard = SparseShard(table(embedx_threshold=0.0, **both("max_bound", 1.0)))
    add(shard, {5: [1, 0, 0.75, 0.75, 0]}, now=3)
    add(shard, {5: [0, 0, 0.75, 0.75, 0]}, now=9)

    row = shard.read_counted(np.array([5], np.int64))[0]
    assert row.tolist() == [1, 0, 1, 1, 0, 3, 1]


def test_what_is_added_of_one_id_twice_is_added_up() -> None:
    shard = SparseShard(table(initializer=ZEROS, embedx_threshold=9.0))
    deltas = np.array([[1, 0, 1, 1, 1], [2, 1, 1, 1, 1]], np.float32)
    shard.add(np.array([5, 5], np.int64), deltas, np.array([False, True]))

    assert shard.read_counted(np.array([5], np.int64))[0].tolist() == [3, 1, 2, 2, 2, 0, 1]
