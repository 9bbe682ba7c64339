"""GEO with accessors and entries, in logical jobs of the product's own modes."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from logical import Alone, LogicalJob, LogicalWorker
from paramfleet.config.eviction import Eviction
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.nn import CountFilterEntry, CtrAccessor, ProbabilityEntry, SparseRule
from paramfleet.training.evicting.selecting import select
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.tables.rows.evicting import AsOf
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.spec import EntrySpec

DIM = 3
START = fleet.nn.uniform(-0.5, 0.5)


class Clicks(torch.nn.Module):
    """Rows that count, or need to be admitted."""

    def __init__(self, dim: int = DIM, **options: Any) -> None:
        super().__init__()
        options = {"initializer": START, **options}
        self.rows = fleet.nn.Embedding(0, dim, name="rows", **options)
        self.counts = options.get("accessor") is not None

    def forward(self, ids: torch.Tensor, click: torch.Tensor) -> torch.Tensor:
        found = self.rows(ids, click=click) if self.counts else self.rows(ids)
        loss: torch.Tensor = found * found + found * torch.arange(1, found.shape[1] + 1)
        return loss.sum()


def made(num: int, options: dict[str, Any]) -> list[LogicalWorker]:
    workers = []
    for _ in range(num):
        model = Clicks(**options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        workers.append(LogicalWorker(model, optimizer))
    return workers


@contextmanager
def geo(num: int, options: dict[str, Any], **keys: Any) -> Iterator[LogicalJob]:
    strategy = DistributedStrategy()
    kept = {"tracks": keys.pop("tracks", "none")}
    kept["entry"] = EntrySpec(max_rows=keys.pop("max_rows", 0))
    strategy.a_sync_configs = {"k_steps": 1, **keys}
    workers = made(num, options)
    for worker in workers:
        ((table, _),) = worker.tables.sparse
        if kept != {"tracks": "none", "entry": EntrySpec()}:  # as ``retain`` says it
            table.kept_as = table.kept_as._replace(**kept)
    with closing(LogicalJob(workers, strategy.resolve())) as job:
        yield job


def take_step(worker: LogicalWorker, ids: Sequence[int], click: Sequence[int] = ()) -> None:
    clicks = torch.tensor(click or [0] * len(ids)).float()
    worker.model(torch.tensor(ids), clicks).backward()
    worker.step(examples=len(ids))


def set_day(worker: LogicalWorker, day: int) -> None:
    """As ``fleet.set_date`` does."""
    worker.mode.end_day()
    for table, _ in worker.tables.sparse:
        table.day = day


def evicted(worker: LogicalWorker, eviction: Eviction, *, now: int = 0) -> int:
    """Remove rows as ``fleet.shrink`` does; return how many."""
    ((table, _),) = worker.tables.sparse
    before = now - eviction.unseen_steps if eviction.unseen_steps else 0
    choose = partial(eviction.num_to_evict, max_rows=eviction.max_rows)
    ids = worker.mode.evictable(table, AsOf(now, before), select(choose))
    return worker.mode.remove(table, ids)


def store_of(worker: LogicalWorker) -> Any:
    return worker.tables.sparse[0][0].source


def rows_of(worker: LogicalWorker) -> dict[int, list[float]]:
    """Return rows by id: their values, and with an accessor whether they have their embedx."""
    store = store_of(worker)
    ids = np.sort(store.live_ids())
    slots = store.held(ids)
    rows = store.values[slots]
    if store.spec.optimizer.num_counts:
        beside = [store.column(name)[slots] for name in ("is_extended", "seen_day")]
        rows = np.concatenate([rows, *beside], axis=1)
    return dict(zip(ids.tolist(), rows.tolist(), strict=True))


def served_of(job: LogicalJob) -> dict[int, list[float]]:
    """Return the pserver's rows by id, as ``rows_of`` does."""
    table = job._server._store.find("rows")
    assert isinstance(table, SparseTable)
    (block,) = table.blocks
    ids = np.sort(block.rows.ids()[block.rows.live(0, block.rows.num_slots)])
    if not table.spec.optimizer.num_counts:
        values, _ = block.rows.read(ids)
        return dict(zip(ids.tolist(), values.tolist(), strict=True))
    rows = block.rows.read_counted(ids)
    rows[:, [-2, -1]] = rows[:, [-1, -2]]
    return dict(zip(ids.tolist(), rows.tolist(), strict=True))


def assert_close(
    have: dict[int, list[float]], want: dict[int, list[float]], **how: Any
) -> None:
    assert have.keys() == want.keys()
    tolerance = {"rtol": 1e-5, "atol": 1e-6, **how}
    np.testing.assert_allclose(list(have.values()), list(want.values()), **tolerance)


def accessor(rule: str = "SparseAdaGradSGDRule", **options: Any) -> CtrAccessor:
    own = SparseRule(rule)
    return CtrAccessor(**{"embed": own, "embedx": own, "embedx_threshold": 3.0, **options})


def batches(num: int, *, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 6, num)
    return [
        (draw.integers(0, 12, size).tolist(), draw.integers(0, 2, size).tolist())
        for size in sizes.tolist()
    ]


@pytest.mark.parametrize(
    ("rule", "fresh_steps", "merge"),
    [
        *((rule, 0, "paced") for rule in PART_RULES),
        *(("SparseAdamSGDRule", 100, merge) for merge in ("mean", "remainder", "average")),
    ],
)
def test_one_worker_has_the_numbers_of_one_process(
    rule: str, fresh_steps: int, merge: str
) -> None:
    options = {"accessor": accessor(rule)}
    (plain,) = made(1, options)
    alone = Alone(plain)
    with geo(1, options, fresh_steps=fresh_steps, geo_merge=merge) as job:
        (worker,) = job.workers
        for number, (ids, click) in enumerate(batches(30)):
            for each in (plain, worker):
                if number % 10 == 5:
                    set_day(each, 1000 + number)
                take_step(each, ids, click)
            job.deliver()
            assert_close(rows_of(worker), rows_of(plain))
        job.finish()
        assert_close(served_of(job), rows_of(plain))
    alone.close()
    grown = [row[-2] for row in rows_of(plain).values()]
    assert 0 < sum(grown) < len(grown)


@pytest.mark.parametrize(
    ("rule", "grads", "expected"),
    [
        ("SparseAdaGradSGDRule", [0.6], [[-0.015], [-0.0297799399], [-0.0443492271]]),
        ("SparseAdamSGDRule", [0.6], [[-0.0009999995], [-0.0019999991], [-0.0029999988]]),
        (
            "SparseSharedAdamSGDRule",
            [0.6, -0.2],
            [[-0.0009999995, 0.0009999984], [-0.0017757655, 0.0010303904]],
        ),
    ],
)
def test_fleets_vectors_hold_with_one_worker(
    rule: str, grads: list[float], expected: list[list[float]]
) -> None:
    own, seen = SparseRule(rule, initial_range=0.0), []
    is_embedx = len(grads) > 1
    made_by = CtrAccessor(embed=own, embedx=own, grad_scale="mean", embedx_threshold=0.0)
    options = {"accessor": made_by, "dim": 3, "initializer": None}
    with geo(1, options, fresh_steps=100) as job:
        (worker,) = job.workers
        if is_embedx:
            take_step(worker, [5])  # which makes embedx, and it learns from the next
        first = served_of(job)[5][3:5] if is_embedx else [0.0]
        for _ in expected:
            shown = worker.model.rows(torch.tensor([5]), show=torch.tensor([2.0]))  # type: ignore[operator]  # a module
            weights = shown[0, 1:] if is_embedx else shown[0, :1]
            (weights * torch.tensor(grads)).sum().backward()
            worker.step(examples=1)
            row = served_of(job)[5]
            seen.append(np.subtract(row[3:5] if is_embedx else row[2:3], first))
    np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-10)


def test_the_exchange_that_extends_a_row_leaves_embedx_at_its_first_values() -> None:
    options = {"accessor": accessor(embedx_threshold=0.0)}
    with geo(1, options, fresh_steps=100) as job:
        (worker,) = job.workers
        take_step(worker, [5])
        first = served_of(job)[5]
        assert all(first[3:5])
        assert first[3:5] == rows_of(worker)[5][3:5]

        take_step(worker, [5])
        assert served_of(job)[5][3] != first[3], "it learns from the next step on"


@pytest.mark.parametrize("merge", ["paced", "damped", "mean", "remainder", "average"])
@pytest.mark.parametrize(("num", "k_steps"), [(2, 1), (3, 4)])
def test_every_show_is_counted_once_and_all_end_alike(
    num: int, k_steps: int, merge: str
) -> None:
    options = {"accessor": accessor()}
    counts: dict[int, list[float]] = {}
    with geo(num, options, k_steps=k_steps, fresh_steps=5, geo_merge=merge) as job:
        for number in range(25):
            for rank, worker in enumerate(job.workers):
                ((ids, click),) = batches(1, seed=num * number + rank)
                for each, clicked in zip(ids, click, strict=True):
                    show, clicks = counts.get(each, [0, 0])
                    counts[each] = [show + 1, clicks + clicked]
                take_step(worker, ids, click)
            job.deliver()
        job.finish()
        served = served_of(job)
        workers = [rows_of(worker) for worker in job.workers]

    assert {key: row[:2] for key, row in served.items()} == counts
    for rows in workers:
        assert_close(rows, served)
        assert {key: row[:2] for key, row in rows.items()} == counts
        assert {key: row[-2] for key, row in rows.items()} == {
            key: (show - click) * np.float32(0.1) + click >= 3
            for key, (show, click) in counts.items()
        }


def test_a_row_grows_by_what_all_have_counted_together() -> None:
    options = {"accessor": accessor(embedx_threshold=4.0)}
    with geo(2, options, fresh_steps=100) as job:
        ada, bob = job.workers
        for clicks in (1, 1, 1):
            take_step(ada, [7], [clicks])
        assert rows_of(ada)[7][-2] == 0
        take_step(bob, [7], [1])

        assert served_of(job)[7][-2] == 1
        take_step(ada, [9])
        assert rows_of(ada)[7][3:] == served_of(job)[7][3:]


def test_counts_of_all_workers_fade_once_a_day() -> None:
    options = {"accessor": accessor(show_click_decay_rate=0.5)}
    (plain,) = made(1, options)
    Alone(plain)
    with geo(2, options, k_steps=3, fresh_steps=0) as job:
        for day in (100, 101, 103):
            for each in (plain, *job.workers):
                set_day(each, day)
            for worker in job.workers:
                for ids in ([1, 2], [2, 3]):
                    take_step(worker, ids)
                    take_step(plain, ids)
            job.deliver()
        job.finish()
        expected = {key: row[:2] for key, row in rows_of(plain).items()}
        for rows in (served_of(job), *map(rows_of, job.workers)):
            assert {key: row[:2] for key, row in rows.items()} == expected
            assert {row[-1] for row in rows.values()} == {103}


@pytest.mark.parametrize("entry", [CountFilterEntry(3), ProbabilityEntry(0.5)])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize(("fresh_steps", "k_steps"), [(0, 1), (100, 1), (0, 3)])
def test_one_worker_admits_the_ids_of_one_process(
    entry: Any, counts: bool, fresh_steps: int, k_steps: int
) -> None:
    options: dict[str, Any] = {"entry": entry}
    if counts:
        options["accessor"] = accessor()
    (plain,) = made(1, options)
    Alone(plain)
    with geo(1, options, fresh_steps=fresh_steps, k_steps=k_steps) as job:
        (worker,) = job.workers
        for ids, click in batches(15):
            for each in (plain, worker):
                take_step(each, ids, click)
            job.deliver()
            assert_close(rows_of(worker), rows_of(plain))
        assert 0 < len(rows_of(plain)) < 12
        job.finish()
        assert_close(served_of(job), rows_of(plain))


def test_an_id_is_admitted_by_the_steps_of_all_workers() -> None:
    options = {"entry": CountFilterEntry(5)}
    with geo(2, options, k_steps=2, fresh_steps=100) as job:
        ada, bob = job.workers
        first = ada.model.rows(torch.tensor([7])).detach().clone()  # type: ignore[operator]  # a module
        for _ in range(2):
            take_step(ada, [7, 8])
            take_step(bob, [7])
        assert not served_of(job), "it came four times"
        take_step(ada, [7])
        take_step(bob, [9])
        take_step(ada, [9])
        take_step(bob, [9])

        assert served_of(job) == {7: first[0].tolist()}, "ada learned nothing of it before"
        take_step(ada, [7])
        assert ada.model.rows(torch.tensor([7])).tolist() != first.tolist()  # type: ignore[operator]  # a module
        job.finish()
        assert rows_of(bob) == served_of(job)
        assert rows_of(ada).keys() == {7}


def test_narrow_numbers_go_with_entries() -> None:
    options = {"entry": CountFilterEntry(3), "dim": 8}
    with geo(2, options, k_steps=2, fresh_steps=100, wire_dtype="int8") as job:
        for number in range(20):
            for rank, worker in enumerate(job.workers):
                ((ids, _),) = batches(1, seed=2 * number + rank)
                take_step(worker, ids)
        job.finish()
        for worker in job.workers:
            assert_close(rows_of(worker), served_of(job))
        assert served_of(job)


def test_rows_that_are_worth_little_go_everywhere() -> None:
    options = {"accessor": accessor(delete_threshold=0.25)}
    with geo(2, options, k_steps=2, fresh_steps=0) as job:
        ada, bob = job.workers
        for ids in ([1, 2], [2, 3], [2, 3, 4]):
            take_step(ada, ids)
            take_step(bob, [2, 5, 1])
            job.deliver()
        bob.mode.flush()

        assert evicted(ada, Eviction()) == 2, "4 came once, 3 twice; of 1 there are 4 shows"
        take_step(bob, [2])
        job.finish()
        assert served_of(job).keys() == {1, 2, 5}
        for worker in job.workers:
            assert_close(rows_of(worker), served_of(job))


def test_rows_go_by_the_steps_of_their_last_exchange() -> None:
    eviction = Eviction(unseen_steps=2)
    with geo(1, {}, fresh_steps=100, tracks="step") as job:
        (worker,) = job.workers
        ((table, _),) = worker.tables.sparse
        for number, ids in enumerate(([1, 2], [2], [2, 3], [3]), start=1):
            table.step = number
            take_step(worker, ids)
        assert evicted(worker, eviction, now=4) == 1
        assert rows_of(worker).keys() == served_of(job).keys() == {2, 3}


@pytest.mark.parametrize("counts", [False, True])
def test_no_more_rows_are_made_than_there_may_be(counts: bool) -> None:
    options: dict[str, Any] = {"accessor": accessor()} if counts else {}
    with geo(
        2, options, fresh_steps=100, max_rows=8, tracks="none" if counts else "step"
    ) as job:
        for number in range(20):
            for rank, worker in enumerate(job.workers):
                ((table, _),) = worker.tables.sparse
                table.step = number + 1
                take_step(worker, [2 * number + rank, 100 + rank])
        job.finish()
        assert len(served_of(job)) == 8
        for worker in job.workers:
            assert_close(rows_of(worker), served_of(job))
