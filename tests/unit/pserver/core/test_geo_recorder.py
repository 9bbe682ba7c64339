"""Whatever replies are lost, each worker finally sees each change."""

import tracemalloc
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from typing_extensions import override

from paramfleet_pserver.core.geo.recorder import MAX_UNACKED, GeoRecorder
from paramfleet_shared.values.ids import Rank
from paramfleet_shared.values.replies import has_begun_anew

ADA, BOB = Rank(0), Rank(1)
ALL = 1 << 30


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def taken(recorder: GeoRecorder, rank: Rank, max_rows: int = ALL) -> list[int]:
    return [int(row) for row in recorder.take(rank, max_rows=max_rows).rows]


def test_the_others_hear_of_a_change_and_the_writer_does_not() -> None:
    recorder = GeoRecorder(num_workers=3)

    recorder.record(ids(5, 7), writer=ADA)

    assert taken(recorder, ADA) == []
    assert taken(recorder, BOB) == [5, 7]
    assert taken(recorder, Rank(2)) == [5, 7]


def test_a_change_by_nobody_is_told_to_all() -> None:
    recorder = GeoRecorder(num_workers=2)

    recorder.record(ids(5), writer=None)

    assert (taken(recorder, ADA), taken(recorder, BOB)) == ([5], [5])


def test_an_unacknowledged_reply_is_sent_again() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(5), writer=ADA)

    first = recorder.take(BOB, max_rows=ALL)
    second = recorder.take(BOB, max_rows=ALL)

    assert (first.batch, second.batch) == (1, 2)
    assert first.rows.tolist() == second.rows.tolist() == [5]


def test_no_reply_of_a_lost_term_has_a_number_of_the_next_one() -> None:
    """The state that both begin from lacks the beginning of the first."""
    first, second = (GeoRecorder(num_workers=2) for _ in range(2))
    first.begin_term(2)
    first.record(ids(5), writer=ADA)
    received = first.take(BOB, max_rows=ALL).batch

    second.begin_term(3)
    second.record(ids(7), writer=ADA)
    second.take(BOB, max_rows=ALL)
    second.acknowledge(BOB, received)

    assert taken(second, BOB) == [7]
    assert has_begun_anew(received, second.take(BOB, max_rows=ALL).batch)


def test_an_acknowledged_reply_is_forgotten() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(5), writer=ADA)

    recorder.acknowledge(BOB, recorder.take(BOB, max_rows=ALL).batch)

    assert taken(recorder, BOB) == []
    assert recorder.num_waiting(BOB) == 0


def test_a_row_changed_after_its_reply_outlives_the_acknowledgement() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(5, 6), writer=ADA)
    reply = recorder.take(BOB, max_rows=ALL)

    recorder.record(ids(5), writer=ADA)
    recorder.acknowledge(BOB, reply.batch)

    assert taken(recorder, BOB) == [5]


def test_the_reply_to_the_first_of_two_equal_requests_can_be_acknowledged() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(5), writer=ADA)
    first = recorder.take(BOB, max_rows=ALL)
    recorder.take(BOB, max_rows=ALL)

    recorder.acknowledge(BOB, first.batch)

    assert taken(recorder, BOB) == []


@pytest.mark.parametrize("batch", [0, -3, 99])
def test_an_unknown_acknowledgement_changes_nothing(batch: int) -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(5), writer=ADA)
    taken(recorder, BOB)

    recorder.acknowledge(BOB, batch)

    assert taken(recorder, BOB) == [5]


def test_a_bounded_reply_takes_the_longest_waiting_and_says_that_there_is_more() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(9), writer=ADA)
    recorder.record(ids(1, 9, 5), writer=ADA)

    first = recorder.take(BOB, max_rows=2)
    recorder.acknowledge(BOB, first.batch)
    second = recorder.take(BOB, max_rows=2)

    assert (first.rows.tolist(), first.more) == ([9, 1], True)
    assert (second.rows.tolist(), second.more) == ([5], False)


def test_what_was_left_over_comes_before_what_changed_later() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(1, 2, 3), writer=ADA)
    reply = recorder.take(BOB, max_rows=1)
    recorder.record(ids(4, 2), writer=ADA)

    recorder.acknowledge(BOB, reply.batch)

    assert taken(recorder, BOB) == [2, 3, 4]


def test_replies_never_acknowledged_take_bounded_room() -> None:
    recorder = GeoRecorder(num_workers=2)
    for change in range(3 * MAX_UNACKED):
        recorder.record(ids(change, 100), writer=ADA)
        recorder.take(BOB, max_rows=ALL)

    assert recorder.num_waiting(BOB) <= 2 * (3 * MAX_UNACKED)
    recorder.acknowledge(BOB, 3 * MAX_UNACKED)
    assert recorder.num_waiting(BOB) == 0


def test_a_worker_that_never_asks_costs_no_more_than_its_distinct_rows() -> None:
    recorder = GeoRecorder(num_workers=2)
    rows = np.arange(5000, dtype=np.int64)

    for _ in range(20):
        recorder.record(rows, writer=ADA)

    assert recorder.num_waiting(BOB) == 5000
    assert len(taken(recorder, BOB)) == 5000


def test_an_exchange_costs_what_it_moves_however_much_waits() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(np.arange(1 << 20, dtype=np.int64), writer=ADA)
    batch, reported = 0, 0

    tracemalloc.start()
    for step in range(100):
        recorder.record(ids(step, step + 1), writer=ADA)
        recorder.acknowledge(BOB, batch)
        reply = recorder.take(BOB, max_rows=100)
        batch, reported = reply.batch, reported + len(reply.rows)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert reported == 100 * 100
    assert peak_bytes < 100_000, "the rows that wait were neither copied nor sorted"


def test_rows_that_change_all_the_time_keep_nobody_else_waiting() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(np.arange(10, dtype=np.int64), writer=ADA)
    received: set[int] = set()
    batch = 0

    for _ in range(5):
        recorder.record(ids(0, 1), writer=ADA)
        recorder.acknowledge(BOB, batch)
        reply = recorder.take(BOB, max_rows=4)
        recorder.record(ids(0, 1), writer=ADA)
        batch = reply.batch
        received.update(reply.rows.tolist())

    assert received == set(range(10))


def test_a_recorder_in_the_place_of_another_knows_none_of_its_replies() -> None:
    former = GeoRecorder(num_workers=2)
    former.record(ids(5), writer=ADA)
    old = former.take(BOB, max_rows=ALL)
    recorder = GeoRecorder(num_workers=2, last_batch=former.last_batch)
    recorder.record(ids(7), writer=None)
    first = recorder.take(BOB, max_rows=ALL)

    recorder.acknowledge(BOB, old.batch)

    assert first.batch > old.batch
    assert taken(recorder, BOB) == [7]


def test_a_worker_that_left_waits_for_nothing() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(5), writer=ADA)

    recorder.leave(BOB)
    recorder.record(ids(6), writer=ADA)
    recorder.acknowledge(BOB, 1)

    reply = recorder.take(BOB, max_rows=ALL)
    assert (reply.rows.tolist(), reply.more, reply.batch) == ([], False, 0)
    assert recorder.num_waiting(BOB) == 0


def test_a_worker_that_joins_hears_what_it_is_told_and_what_changes_from_then_on() -> None:
    recorder = GeoRecorder(num_workers=1)
    recorder.record(ids(5, 6), writer=None)

    recorder.join(BOB)
    recorder.record(ids(6), writer=ADA)
    recorder.announce(BOB, ids(5, 6))
    recorder.announce(BOB, ids(5, 6))
    recorder.join(BOB)

    assert taken(recorder, BOB) == [6, 5]


def test_who_joins_again_is_not_taken_for_its_former_self() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(5), writer=ADA)
    old = recorder.take(BOB, max_rows=ALL)

    recorder.leave(BOB)
    recorder.join(BOB)
    recorder.record(ids(7), writer=ADA)
    first = recorder.take(BOB, max_rows=ALL)
    recorder.acknowledge(BOB, old.batch)

    assert first.batch > old.batch
    assert taken(recorder, BOB) == [7]


def test_nobody_is_told_who_takes_no_part() -> None:
    recorder = GeoRecorder(num_workers=1)

    recorder.announce(BOB, ids(5))

    assert recorder.num_waiting(BOB) == 0


def test_an_exchange_without_rows_is_no_change() -> None:
    recorder = GeoRecorder(num_workers=2)

    recorder.record(ids(), writer=ADA)

    assert recorder.num_waiting(BOB) == 0


class RecorderMachine(RuleBasedStateMachine):
    """A server's versions of rows, and what each worker has seen of them."""

    NUM_WORKERS = 3

    def __init__(self) -> None:
        super().__init__()
        self.recorder = GeoRecorder(num_workers=self.NUM_WORKERS)
        self.version: dict[int, int] = {}
        self.must_see: list[dict[int, int]] = [{} for _ in range(self.NUM_WORKERS)]
        self.seen: list[dict[int, int]] = [{} for _ in range(self.NUM_WORKERS)]
        self.acks = [0] * self.NUM_WORKERS
        self.in_flight: list[list[tuple[int, dict[int, int]]]] = [
            [] for _ in range(self.NUM_WORKERS)
        ]

    @rule(writer=st.integers(0, 2), rows=st.sets(st.integers(0, 12), max_size=6))
    def change(self, writer: int, rows: Iterable[int]) -> None:
        for row in rows:
            self.version[row] = self.version.get(row, 0) + 1
            for other in range(self.NUM_WORKERS):
                if other != writer:
                    self.must_see[other][row] = self.version[row]
        self.recorder.record(ids(*rows), writer=Rank(writer))

    @rule(rank=st.integers(0, 2), max_rows=st.integers(1, 8))
    def request(self, rank: int, max_rows: int) -> None:
        self.recorder.acknowledge(Rank(rank), self.acks[rank])
        reply = self.recorder.take(Rank(rank), max_rows=max_rows)
        rows = reply.rows.tolist()
        assert len(rows) == len(set(rows)) <= max_rows
        self.in_flight[rank].append((reply.batch, {row: self.version[row] for row in rows}))

    @precondition(lambda self: any(self.in_flight))
    @rule(data=st.data(), late=st.booleans())
    def deliver(self, data: st.DataObject, late: bool) -> None:
        """A reply arrives, a later one first if ``late``; those before it are lost."""
        rank = data.draw(st.sampled_from([r for r in range(3) if self.in_flight[r]]))
        place = -1 if late else 0
        batch, rows = self.in_flight[rank][place]
        self.in_flight[rank].clear()
        self.seen[rank].update(rows)
        self.acks[rank] = batch

    @override
    def teardown(self) -> None:
        for rank in range(self.NUM_WORKERS):
            for _ in range(40):
                self.in_flight[rank].clear()
                self.request(rank, 8)
                batch, rows = self.in_flight[rank][0]
                self.seen[rank].update(rows)
                self.acks[rank] = batch
            for row, version in self.must_see[rank].items():
                assert self.seen[rank].get(row, 0) >= version
            self.recorder.acknowledge(Rank(rank), self.acks[rank])
            assert self.recorder.num_waiting(Rank(rank)) == 0


TestRecorderModel = pytest.mark.slow(RecorderMachine.TestCase)


def test_a_row_waits_until_every_worker_has_acknowledged_or_left() -> None:
    recorder = GeoRecorder(num_workers=2)
    recorder.record(ids(5, 7, 5000), writer=None)
    recorder.record(ids(8), writer=ADA)

    def waiting() -> list[int]:
        return [row for row in (5, 7, 8, 9, 5000) if recorder.is_waiting(ids(row))[0]]

    reply = recorder.take(ADA, max_rows=2)
    recorder.record(ids(7), writer=None)
    assert recorder.acknowledge(ADA, reply.batch).tolist() == [5, 7]
    assert recorder.acknowledge(ADA, reply.batch).tolist() == []
    assert waiting() == [5, 7, 8, 5000]
    assert recorder.leave(BOB).tolist() == [5, 7, 5000, 8]

    assert waiting() == [7, 5000], "7 changed again, and 5000 didn't fit"
