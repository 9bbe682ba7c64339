"""GEO's arithmetic, by the vectors it is defined by and by simulation."""

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet.config.strategy import GeoMerge
from paramfleet.tables.replica import DenseReplica, RowReplica
from paramfleet.tables.row_store import RowStore
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec


def vector(*values: float) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


def row_replica(
    worker_num: int, merge: GeoMerge = "remainder", *, narrows: bool = False
) -> RowReplica:
    spec = TableSpec(
        name="t",
        kind="sparse",
        dim=1,
        size=0,
        num_shards=1,
        seed=0,
        initializer=InitializerSpec(kind="constant", value=1.0),
        optimizer=OptimizerSpec(rule="sum"),
    )
    return RowReplica(RowStore(spec), worker_num=worker_num, merge=merge, narrows=narrows)


def test_two_workers_send_half_and_hear_the_rest() -> None:
    replica = DenseReplica(vector(1.0), worker_num=2, merge="remainder")

    delta, cur = replica.take_delta(vector(1.4))
    assert delta == pytest.approx([0.2])
    assert replica.old == pytest.approx([1.2])

    cur = replica.receive(cur, vector(1.5))
    assert cur == pytest.approx([1.7])
    assert replica.old == pytest.approx([1.5])

    delta, cur = replica.take_delta(cur)
    assert delta == pytest.approx([0.1])
    delta, _ = replica.take_delta(cur)
    assert delta == pytest.approx([0.05])


def test_rows_follow_the_same_vectors() -> None:
    replica = row_replica(worker_num=2)
    ids = np.array([7], np.int64)
    slots = replica.store.slots(ids)
    replica.store.values[slots] = 1.4
    replica.touch(slots)

    sent, delta, _ = replica.take_delta()
    assert sent.tolist() == [7]
    assert delta == pytest.approx(np.array([[0.2]]))

    replica.receive(ids, np.array([[1.5]], np.float32))
    assert replica.store.values[slots] == pytest.approx(np.array([[1.7]]))
    assert replica.take_delta()[0].size == 0, "an untouched row sends nothing"

    sent, rest, _ = replica.take_rest()
    assert sent.tolist() == [7]
    assert rest == pytest.approx(np.array([[0.2]]))


def test_average_drops_what_was_not_sent() -> None:
    replica = DenseReplica(vector(1.0), worker_num=2, merge="average")

    delta, cur = replica.take_delta(vector(1.4))

    assert delta == pytest.approx([0.2])
    assert cur == pytest.approx([1.2])
    assert replica.receive(cur, vector(1.5)) == pytest.approx([1.5])


@pytest.mark.parametrize("merge", ["paced", "damped", "mean"])
def test_where_servers_divide_all_progress_is_sent_and_nothing_is_left(
    merge: GeoMerge,
) -> None:
    dense, rows = DenseReplica(vector(1.0), worker_num=4, merge=merge), row_replica(4, merge)
    slots = rows.store.slots(np.array([7], np.int64))
    rows.store.values[slots] = 1.5
    rows.touch(slots)

    delta, cur = dense.take_delta(vector(1.5))
    _, deltas, _ = rows.take_delta()

    assert (delta.tolist(), cur.tolist(), deltas.tolist()) == ([0.5], [1.5], [[0.5]])
    assert dense.take_rest(cur)[0].tolist() == [0.0]
    assert rows.take_rest().ids.size == 0
    assert dense.receive(vector(1.75), vector(1.25)) == pytest.approx([1.5]), "0.25 is new"
    rows.receive(np.array([7], np.int64), np.array([[1.25]], np.float32))
    assert rows.store.values[slots].tolist() == [[1.25]], "what became of its delta"


def test_one_worker_alone_agrees_with_the_server_after_one_exchange() -> None:
    replica = DenseReplica(vector(1.0, 2.0), worker_num=1, merge="remainder")

    delta, cur = replica.take_delta(vector(1.4, 1.0))
    served = vector(1.0, 2.0) + delta

    assert replica.receive(cur, served) == pytest.approx(served)
    assert replica.old == pytest.approx(served)


def simulate(merge: GeoMerge, rounds: int) -> tuple[float, list[float]]:
    """Let four workers move by +1 once, then only exchange; return server and workers."""
    served = vector(0.0)
    replicas = [DenseReplica(served, worker_num=4, merge=merge) for _ in range(4)]
    current = [vector(1.0) for _ in replicas]
    for _ in range(rounds):
        for index, replica in enumerate(replicas):
            delta, current[index] = replica.take_delta(current[index])
            served = served + delta
            current[index] = replica.receive(current[index], served)
    for index, replica in enumerate(replicas):
        rest, current[index] = replica.take_rest(current[index])
        served = served + rest
    final = [float(r.receive(c, served)[0]) for r, c in zip(replicas, current, strict=True)]
    return float(served[0]), final


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_with_remainder_the_total_is_the_sum_of_all_progress(rounds: int) -> None:
    served, workers = simulate("remainder", rounds)

    assert served == pytest.approx(4.0, abs=1e-5)
    assert workers == pytest.approx([4.0] * 4, abs=1e-5)


def test_with_average_the_total_is_the_mean_of_all_progress() -> None:
    served, workers = simulate("average", 3)

    assert served == pytest.approx(1.0, abs=1e-5)
    assert workers == pytest.approx([1.0] * 4, abs=1e-5)


def test_rows_that_others_made_start_from_the_first_value() -> None:
    replica = row_replica(worker_num=2)

    replica.receive(np.array([3, 9], np.int64), np.array([[1.25], [0.5]], np.float32))

    values = replica.store.values[replica.store.slots(np.array([9, 3], np.int64))]
    assert values.ravel().tolist() == [0.5, 1.25]
    assert replica.take_rest()[0].size == 0


def test_what_is_all_sent_becomes_the_servers_value_to_the_bit() -> None:
    replica = DenseReplica(vector(1e8), worker_num=2, merge="remainder")

    assert replica.receive(vector(1e8), vector(1.5)).tolist() == [1.5]
    rows = row_replica(worker_num=2)
    rows.receive(np.array([1], np.int64), np.array([[1e8]], np.float32))
    rows.receive(np.array([1], np.int64), np.array([[0.3]], np.float32))
    assert rows.store.values[rows.store.slots(np.array([1], np.int64))] == np.float32(0.3)


def test_forgetting_brings_back_first_values() -> None:
    replica = row_replica(worker_num=2)
    slots = replica.store.slots(np.array([5], np.int64))
    replica.receive(np.array([5], np.int64), np.array([[9.0]], np.float32))
    replica.store.values[slots] = 10.0
    replica.touch(slots)

    replica.forget()

    assert replica.store.values[slots].tolist() == [[1.0]]
    assert replica.take_rest()[0].size == 0


def test_what_narrow_numbers_lost_is_sent_with_a_later_delta() -> None:
    dense = DenseReplica(vector(0, 0), worker_num=2, merge="remainder")
    cur = vector(4, 8)
    delta, cur = dense.take_delta(cur)

    dense.give_back(delta - vector(1.5, 4))

    assert (cur - dense.old).tolist() == [2.5, 4.0]
    rows = row_replica(2)
    ids = np.array([5, 3])
    slots = rows.store.slots(ids)
    first = rows.store.values[slots].copy()
    rows.store.values[slots] += 4
    rows.touch(slots)
    taken = rows.take_delta()
    rows.give_back(taken.ids, np.full_like(taken.values, 0.5))
    rows.touch(slots)
    assert rows.take_delta().values == pytest.approx(np.full_like(first, 1.25))


def quarters(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.round(values * 4) / np.float32(4)


@pytest.mark.parametrize("merge", ["remainder", "average"])
def test_small_progress_of_a_vector_arrives_through_narrow_numbers(merge: GeoMerge) -> None:
    served = vector(0.0)
    replicas = [DenseReplica(served, worker_num=2, merge=merge) for _ in range(2)]
    current = [served.copy() for _ in replicas]
    for _ in range(40):
        for index, replica in enumerate(replicas):
            delta, current[index] = replica.take_delta(current[index] + vector(0.1))
            served = served + quarters(delta)
            replica.give_back(delta - quarters(delta))
            current[index] = replica.receive(current[index], served)
    during = float(served[0])
    for index, replica in enumerate(replicas):
        rest, current[index] = replica.take_rest(current[index])
        served = served + rest

    total = 4.0 if merge == "average" else 8.0
    assert during == pytest.approx(total, abs=0.6)
    assert served[0] == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("merge", ["remainder", "average"])
def test_small_progress_of_rows_arrives_through_narrow_numbers(merge: GeoMerge) -> None:
    replicas = [row_replica(2, merge, narrows=True) for _ in range(2)]
    ids = np.arange(5)
    served = np.ones((5, 1), np.float32)
    for number in range(40):
        moved = ids[number % 2 :]  # one row moves half as often
        for replica in replicas:
            slots = replica.store.slots(moved)
            replica.store.values[slots] += np.float32(0.1)
            replica.touch(slots)
            sent, deltas, _ = replica.take_delta()
            served[sent] += quarters(deltas)
            replica.give_back(sent, deltas - quarters(deltas))
            replica.receive(sent, served[sent])
    during = served.copy()
    for replica in replicas:
        sent, rest, _ = replica.take_rest()
        served[sent] += rest
        assert not replica.take_rest().values.any()

    total = np.array([2.0, 4, 4, 4, 4])[:, None] * (1 if merge == "average" else 2) + 1
    assert during == pytest.approx(total, abs=0.6)
    assert served == pytest.approx(total, abs=1e-4)


def test_forgetting_drops_what_narrow_numbers_lost() -> None:
    dense = DenseReplica(vector(0.0), worker_num=2, merge="average")
    dense.take_delta(vector(1.0))
    dense.give_back(vector(0.5))
    rows = row_replica(2, "average", narrows=True)
    ids = np.array([5])
    rows.touch(rows.store.slots(ids))
    rows.take_delta()
    rows.give_back(ids, np.ones((1, 1), np.float32))

    dense.reset(vector(0.0))
    rows.forget()

    assert dense.take_rest(vector(0.0))[0].tolist() == [0.0]
    assert rows.take_rest().ids.size == 0


def test_rows_are_installed_as_they_are_served() -> None:
    rows = row_replica(2)
    slots = rows.store.slots(np.array([5, 3]))
    rows.store.values[slots] += 4
    rows.touch(slots)

    rows.install(np.array([3, 5]), np.full((2, rows.store.spec.dim), 7, np.float32))

    assert (rows.store.values[slots] == 7).all()
    assert not rows.take_delta().values.any()


@pytest.mark.parametrize("merge", ["remainder", "average", "paced"])
@pytest.mark.parametrize("rest", [False, True])
def test_a_vector_in_pieces_goes_on_as_the_whole_does(merge: GeoMerge, *, rest: bool) -> None:
    numbers = np.random.default_rng(1)
    first, cur, others = numbers.standard_normal((3, 1001), np.float32)
    whole = DenseReplica(first, worker_num=3, merge=merge)
    divided = DenseReplica(first, worker_num=3, merge=merge)
    pieces = [slice(0, 400), slice(400, 1000), slice(1000, 1001)]

    take = whole.take_rest if rest else whole.take_delta
    delta, moved = take(cur)
    served = first + delta + others
    moved = whole.receive(moved, served)

    for where in pieces:
        assert np.array_equal(
            divided.delta_of_piece(cur[where], where, rest=rest), delta[where]
        )
        sent = divided.take_piece(cur[where], where, rest=rest)
        received = divided.receive_piece(cur[where], where, served[where], sent=True, rest=rest)
        np.testing.assert_array_equal(sent, delta[where])
        np.testing.assert_array_equal(received, moved[where])
    np.testing.assert_array_equal(divided.old, whole.old)


def test_a_piece_that_is_only_heard_keeps_what_is_unsent() -> None:
    replica = DenseReplica(vector(1.0, 2.0, 3.0), worker_num=2, merge="paced")

    moved = replica.receive_piece(vector(2.5, 3.0), slice(1, 3), vector(4.0, 5.0))

    assert moved == pytest.approx([4.5, 5.0])
    assert replica.old == pytest.approx([1.0, 4.0, 5.0])


@pytest.mark.parametrize("narrows", [False, True])
@pytest.mark.parametrize("merge", ["remainder", "average", "paced"])
def test_a_dropped_row_leaves_nothing_to_the_row_that_takes_its_place(
    merge: GeoMerge, *, narrows: bool
) -> None:
    rows = row_replica(2, merge, narrows=narrows)
    ids = np.array([4, 5, 6])
    slots = rows.store.slots(ids)
    rows.store.values[slots] += 3
    rows.touch(slots)
    rows.take_delta()
    rows.give_back(ids, np.ones((3, 1), np.float32))
    rows.store.values[slots] += 3
    rows.touch(slots)

    dropped = rows.drop(np.array([5, 6, 77]))

    assert dropped.tolist() == slots[1:].tolist()
    assert rows.store.live_ids().tolist() == [4]
    assert rows.store.held(ids).tolist() == [slots[0], -1, -1]
    again = rows.store.slots(np.array([8]))
    assert again[0] in dropped
    assert rows.store.values[again].tolist() == [[1]]
    rows.touch(again)
    rows.receive(np.array([9]), np.array([[2.5]], np.float32))
    deltas = dict(zip(*(each.tolist() for each in rows.take_delta()[:2]), strict=True))
    assert sorted(deltas) == [4, 8]
    assert deltas[8] == [0]
    assert set(rows.take_rest().ids.tolist()) <= {4}
    assert rows.store.num_rows == rows.store.num_slots == 3
