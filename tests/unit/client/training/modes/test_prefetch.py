"""Which rows are asked for ahead, when, and who gets them."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.api.prefetching import Prefetcher, PrefetchError, Prefetching
from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.modes.prefetching.ahead import Ahead, Wanted, When
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.testing.patience import LATE_S

PLACEMENT = Placement(endpoints=("h:1", "h:2"), num_shards=8)


class Served:
    """A source of rows (i, i, ...) of every id i, and the requests that were made of it."""

    num_shards = 8
    by_id = False

    def __init__(self, when: When = "now") -> None:
        self.step = 0
        self.when = when
        self.asked: list[tuple[int, list[str]]] = []
        self.pulled: list[str] = []
        self.ahead = Ahead(
            placement=PLACEMENT,
            read=lambda wanted: Read(
                table=wanted.table.name,
                rows=wanted.rows,
                dim=wanted.table.dim,
                create=wanted.create,
            ),
            pull=self._pull,
            step=lambda: self.step,
            when=lambda: self.when,
        )

    def lookup(self, table: SparseTable, ids_U: Any, offsets: Any, *, create: bool) -> Any:
        del offsets
        found = self.ahead.take(table, ids_U, create=create)
        if found is not None:
            return found[0]
        self.pulled.append(table.name)
        return _rows(ids_U, table.dim)

    def _pull(self, plan: ReadPlan, step: int) -> "Future[list[Message]]":
        messages = plan.messages(rank=0, min_step=step)
        self.asked.append((step, [part["table"] for part in messages[0].fields["parts"]]))
        answers: Future[list[Message]] = Future()
        answers.set_result(
            [
                Message(
                    tensors={
                        f"{i}.rows": _rows(m.tensors[f"{i}.ids"], DIMS[part["table"]])
                        for i, part in enumerate(m.fields["parts"])
                    }
                )
                for m in messages
            ]
        )
        return answers


DIMS = {"wide": 1, "deep": 3}


def _rows(ids: Any, dim: int) -> Any:
    return np.repeat(ids.astype(np.float32)[:, None], dim, axis=1)


class Model(torch.nn.Module):
    def __init__(self, source: Served) -> None:
        super().__init__()
        self.wide = fleet.nn.EmbeddingBag(0, 1, mode="sum", name="wide", padding_idx=0)
        self.deep = fleet.nn.Embedding(0, 3, name="deep")
        self.wide.table.bind(source)
        self.deep.table.bind(source)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.deep(ids[:, 1]).sum(1) + self.wide(input=ids[:, :2]).sum(1)
        return found


def batches(sizes: Iterable[int] = (4, 4, 4, 2)) -> list[dict[str, Any]]:
    random = torch.Generator().manual_seed(0)
    return [
        {"x": [torch.randint(0, 50, (size, 3), generator=random)], "y": None} for size in sizes
    ]


def run(
    source: Served, model: Model, loader: Iterable[Any], *, depth: int = 1, ids: Any = None
) -> list[Any]:
    """Train on a loader: what was yielded."""
    seen = []
    ahead = source.ahead
    for batch in Prefetcher(loader, model, ids=ids, depth=depth, ahead=lambda: ahead):
        seen.append(batch)
        ids_of_batch = batch["x"][0]
        found = model(ids_of_batch)
        expected = ids_of_batch[:, 1] * 3 + ids_of_batch[:, :2].sum(1)
        assert torch.equal(found, expected.float()), "the rows are those of the ids"
        source.step += 1
        if model.training:
            source.ahead.send_next(step=source.step)
    return seen


def by_name(batch: dict[str, Any]) -> dict[Any, Any]:
    ids = batch["x"][0]
    return {"deep": ids[:, 1], "wide": [ids[:, :2]]}


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("ids", [None, by_name])
def test_all_tables_of_a_batch_are_asked_for_in_one_request(ids: Any, depth: int) -> None:
    source = Served()
    model, loader = Model(source), batches()

    seen = run(source, model, loader, depth=depth, ids=ids)

    assert seen == loader, "unchanged, in order"
    watched = ids is None
    assert len(source.asked) == len(loader) - watched, "the first batch is watched"
    assert all(sorted(tables) == ["deep", "wide"] for _, tables in source.asked)
    assert source.pulled == (["deep", "wide"] if watched else [])
    assert source.ahead.num_misses == 0


def test_what_was_watched_is_known_in_the_next_epoch() -> None:
    source = Served()
    model, loader = Model(source), batches()
    ahead = Prefetcher(loader, model, ids=None, depth=1, ahead=lambda: source.ahead)

    for _ in range(2):
        for batch in ahead:
            model(batch["x"][0])

    assert len(ahead) == 4
    assert source.pulled == ["deep", "wide"]


def test_where_steps_change_rows_the_request_names_the_step_it_needs() -> None:
    source = Served("step")

    run(source, Model(source), batches(), depth=2, ids=by_name)

    assert [step for step, _ in source.asked] == [0, 1, 2, 3]
    assert source.pulled == []


def test_one_turn_is_waited_for_at_a_time() -> None:
    source = Served("next")
    model = Model(source)
    sent = []

    for batch in Prefetcher(batches(), model, ids=by_name, depth=3, ahead=lambda: source.ahead):
        sent.append(len(source.asked))
        model(batch["x"][0])
        source.step += 1

    assert sent == [2, 3, 4, 4], "this batch's, and the next one's"
    assert [step for step, _ in source.asked] == [0, 1, 2, 3]
    assert source.pulled == []


@pytest.mark.parametrize("when", ["step", "next"])
def test_rows_of_another_step_are_not_taken(when: Any) -> None:
    source = Served(when)
    model = Model(source)

    for batch in Prefetcher(batches(), model, ids=by_name, depth=1, ahead=lambda: source.ahead):
        source.step += 1  # two steps with one batch
        source.ahead.send_next(step=source.step)
        model(batch["x"][0])

    assert len(source.pulled) == 8
    assert source.ahead.num_misses == 8


def test_gradients_of_two_batches_for_one_step_find_their_rows() -> None:
    source = Served("step")
    model = Model(source)

    for number, batch in enumerate(
        Prefetcher(batches(), model, ids=by_name, depth=1, ahead=lambda: source.ahead)
    ):
        model(batch["x"][0])
        if number % 2:
            source.step += 1
            source.ahead.send_next(step=source.step)

    assert source.pulled == []
    assert [step for step, _ in source.asked] == [0, 0, 1, 1]


def test_what_waited_for_its_step_is_asked_for_at_once_when_steps_no_longer_matter() -> None:
    source = Served("step")
    model = Model(source)
    asked = []

    for number, batch in enumerate(
        Prefetcher(batches([4] * 8), model, ids=by_name, depth=3, ahead=lambda: source.ahead)
    ):
        asked.append(len(source.asked))
        model(batch["x"][0])
        source.step += 1
        source.ahead.send_next(step=source.step)
        if number == 1:
            source.when = "now"

    assert asked == [1, 2, 6, 7, 8, 8, 8, 8]
    assert source.pulled == []


@pytest.mark.parametrize("training", [False, True])
def test_without_gradients_it_asks_ahead_and_creates_nothing(training: bool) -> None:
    source = Served("step")
    model = Model(source).train(training)
    created: list[bool] = []
    pull = source.ahead._pull

    def noted(plan: ReadPlan, step: int) -> Any:
        created.extend(read.create for read in plan.reads)
        return pull(plan, step)

    source.ahead._pull = noted
    with torch.no_grad():
        for batch in Prefetcher(
            batches(), model, ids=by_name, depth=1, ahead=lambda: source.ahead
        ):
            model(batch["x"][0])

    assert source.pulled == []
    assert created == [False] * 8


def test_other_ids_than_those_asked_for_are_pulled() -> None:
    source = Served()
    model = Model(source)

    for batch in Prefetcher(batches(), model, ids=by_name, depth=1, ahead=lambda: source.ahead):
        model(batch["x"][0] + 1)

    assert source.pulled == ["deep", "wide"] * 4
    assert source.ahead.num_misses == 8


def test_computed_ids_are_nobodys_view() -> None:
    source = Served()
    model = Model(source)

    for batch in Prefetcher(batches(), model, ids=None, depth=1, ahead=lambda: source.ahead):
        model(batch["x"][0] + 0)

    assert source.asked == []
    assert source.pulled == ["deep", "wide"] * 4


def test_a_loop_that_ends_early_calls_back_what_it_asked_for() -> None:
    source = Served()
    model = Model(source)
    waiting: list[Future[list[Message]]] = []

    def pull(plan: ReadPlan, step: int) -> "Future[list[Message]]":
        del plan, step
        waiting.append(Future())
        return waiting[-1]

    source.ahead._pull = pull
    loop = iter(Prefetcher(batches(), model, ids=by_name, depth=2, ahead=lambda: source.ahead))
    next(loop)
    assert isinstance(loop, Iterator)
    loop.close()  # type: ignore[attr-defined]  # it is a generator

    assert len(waiting) == 3
    assert all(answers.cancelled() for answers in waiting)


def test_who_waits_for_all_requests_returns_when_each_has_ended_somehow() -> None:
    source = Served()
    waiting: list[Future[list[Message]]] = []

    def pull(plan: ReadPlan, step: int) -> "Future[list[Message]]":
        del plan, step
        waiting.append(Future())
        return waiting[-1]

    source.ahead.wait()  # there are none
    source.ahead._pull = pull
    loop = prefetched(source, Model(source), depth=2)
    next(loop)
    with ThreadPoolExecutor(1) as waiter:
        waited = waiter.submit(source.ahead.wait)
        waiting[0].set_result([])
        waiting[1].set_exception(KeyError("lost"))
        assert not waited.done(), "the third is on its way"
        waiting[2].cancel()
        waited.result(LATE_S)
    loop.close()


def prefetched(source: Served, model: Model, *, depth: int = 1, ids: Any = by_name) -> Any:
    """Return one loop over the batches."""
    ahead = source.ahead
    return iter(Prefetcher(batches(), model, ids=ids, depth=depth, ahead=lambda: ahead))


@pytest.mark.parametrize("when", ["now", "next", "step"])
@pytest.mark.parametrize("ids", [None, by_name])
def test_a_loop_inside_a_loop_leaves_the_outer_ones_rows(when: Any, ids: Any) -> None:
    source = Served(when)
    model = Model(source)
    seen = []

    for batch in prefetched(source, model, ids=ids, depth=2):
        model.eval()
        with torch.no_grad():
            run_inside = [model(inner["x"][0]) for inner in prefetched(source, model, ids=ids)]
        assert len(run_inside) == 4
        seen.append(batch)
        model.train()(batch["x"][0])
        source.step += 1
        source.ahead.send_next(step=source.step)

    assert len(seen) == 4
    watched = ids is None
    assert source.pulled == ["deep", "wide"] * (5 if watched else 0)


def test_two_loops_side_by_side_have_rows_of_their_own() -> None:
    source = Served("step")
    model = Model(source)
    loops = prefetched(source, model, depth=2), prefetched(source, model, depth=1)

    for first, second in zip(*loops, strict=True):
        model(first["x"][0])
        model(second["x"][0])
        source.step += 1
        source.ahead.send_next(step=source.step)

    assert source.pulled == []


@pytest.mark.parametrize("when", ["now", "next", "step"])
def test_a_loop_goes_on_where_all_that_was_asked_for_was_dropped(when: Any) -> None:
    source = Served(when)
    model = Model(source)
    seen = []

    for number, batch in enumerate(prefetched(source, model, depth=2)):
        if number == 1:
            source.ahead.forget()  # as a load does
        seen.append(batch)
        model(batch["x"][0])
        source.step += 1
        source.ahead.send_next(step=source.step)

    assert len(seen) == 4
    assert source.pulled == ["deep", "wide"] * 3, "rows of before are not taken"


def test_a_loop_that_somebody_keeps_harms_no_other_and_hands_out_nothing_old() -> None:
    source = Served()
    model = Model(source)
    kept = prefetched(source, model)
    first = next(kept)
    source.step += 10

    model(first["x"][0])
    assert source.pulled == ["deep", "wide"], "its rows are ten steps old"
    for batch in prefetched(source, model):
        model(batch["x"][0])
    assert source.pulled == ["deep", "wide"]
    model(next(kept)["x"][0])

    assert source.pulled == ["deep", "wide"]


def test_a_turn_is_never_asked_for_two_steps_ahead() -> None:
    source = Served("next")
    model = Model(source)

    for batch in prefetched(source, model, depth=3):  # all gradients make one step
        model(batch["x"][0])

    assert [step for step, _ in source.asked] == [0, 1, 1, 1]


class OneColumn(torch.nn.Module):
    """Looks up what it is given."""

    def __init__(self, source: Served) -> None:
        super().__init__()
        self.deep = fleet.nn.Embedding(0, 3, name="deep")
        self.deep.table.bind(source)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.deep(ids)
        return found


@pytest.mark.parametrize(
    "cut",
    [
        lambda data, at: (data[at, 0], data[at, 1]),
        lambda data, at: (data[at, 1], data[at, 0]),
        lambda data, at: (data[at, :1], data[at, 1]),
        lambda data, at: (data[at, :2], data[at, 1]),
        lambda data, at: (data[at, 1], data[at, :2]),
        lambda data, at: (data[12 - at.start :][:2, 0], data[at, 1]),
    ],
)
def test_parts_of_one_tensor_are_told_apart(cut: Any) -> None:
    source = Served()
    model = OneColumn(source)
    data = torch.arange(42).reshape(14, 3)
    loader = [cut(data, slice(start, start + 4)) for start in range(0, 14, 4)]

    for _, ids in Prefetcher(loader, model, ids=None, depth=1, ahead=lambda: source.ahead):
        model(ids)

    assert source.pulled == ["deep"], "the first batch is watched"
    assert source.ahead.num_misses == 0


def test_a_tensor_beside_the_batch_is_no_view_of_it() -> None:
    source = Served()
    model = OneColumn(source)
    data = torch.arange(40)
    loader = [data[start : start + 4] for start in range(0, 40, 4)]

    for start, _ in enumerate(
        Prefetcher(loader, model, ids=None, depth=1, ahead=lambda: source.ahead)
    ):
        model(data[(4 * start + 4) % 40 :][:4])  # the next batch's

    assert source.asked == []


@pytest.mark.parametrize("ids", [torch.empty(0, dtype=torch.int64), [3]])
def test_what_says_nothing_of_a_batch_is_nobodys_view(ids: Any) -> None:
    source = Served()
    model = OneColumn(source)
    loader = [torch.arange(4)] * 3
    model.deep.forward = lambda given: given  # type: ignore[method-assign,assignment]

    for _ in Prefetcher(loader, model, ids=None, depth=1, ahead=lambda: source.ahead):
        model(ids)

    assert source.asked == []


def test_a_bad_id_is_refused_by_the_forward_that_meets_it() -> None:
    source = Served()
    model, loader = Model(source), batches()
    loader[1]["x"][0][0, 1] = -7

    with pytest.raises(fleet.nn.IdError, match="-7"):
        run(source, model, loader, ids=by_name)

    assert source.step == 1, "the batch before was trained on"


def test_alone_the_batches_just_pass_through() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(fleet.nn.Embedding(0, 2))
    with pytest.raises(CallOrderError, match="distributed_optimizer"):
        list(Prefetching(session).prefetch([torch.arange(3)], model))
    session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    loader = [torch.arange(3), torch.arange(2)]

    assert list(Prefetching(session).prefetch(loader, model)) == loader
    assert session.optimizer is not None
    assert session.optimizer.prefetch_misses == 0


def test_what_can_not_be_used_is_refused() -> None:
    source = Served()
    model = Model(source)
    with pytest.raises(PrefetchError, match="depth = 0"):
        Prefetcher([], model, ids=None, depth=0, ahead=lambda: None)

    named = Prefetcher(
        batches(), model, ids=lambda _: {"deap": torch.arange(2)}, depth=1,
        ahead=lambda: source.ahead,
    )  # fmt: skip
    with pytest.raises(PrefetchError, match="'deap': is neither"):
        next(iter(named))


def test_wanted_rows_are_asked_for_by_table() -> None:
    source = Served()
    model = Model(source)
    unique, _, offsets = model.deep.different(torch.tensor([3, 3, 5]))[0]

    loop = source.ahead.open()
    loop.ask([Wanted(model.deep.table, RowIds(unique, offsets), create=True)])
    loop.begin()
    rows = source.lookup(model.deep.table, unique, offsets, create=True)

    assert rows[:, 0].tolist() == unique.tolist()
    source.lookup(model.deep.table, unique, offsets, create=True)
    assert source.pulled == ["deep"], "rows are handed out once"


@pytest.mark.parametrize(
    ("when", "depth", "told"), [("step", 2, 3), ("next", 2, 2), ("now", 3, 0)]
)
def test_rows_that_come_later_are_told_to_who_reads_disks(
    when: When, depth: int, told: int
) -> None:
    source, heard = Served(when), list[list[str]]()
    source.ahead = Ahead(
        placement=PLACEMENT,
        read=lambda wanted: Read(
            table=wanted.table.name,
            rows=wanted.rows,
            dim=wanted.table.dim,
            create=wanted.create,
        ),
        pull=source._pull,
        step=lambda: source.step,
        when=lambda: source.when,
        expect=lambda wanted: heard.append([each.table.name for each in wanted]),
    )
    model = Model(source)

    run(source, model, batches(), depth=depth, ids=by_name)

    assert len(heard) >= told
    assert all(sorted(tables) == ["deep", "wide"] for tables in heard)
    assert source.pulled == []
