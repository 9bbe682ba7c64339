"""Which changes a worker keeps, for how long, and what it sends again of them."""

import numpy as np
import pytest

from paramfleet.transport.outbox import Entry, Outbox
from paramfleet.transport.requests import Write, write_messages
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds

PLACEMENT = Placement(endpoints=("a", "b"), num_shards=4, terms=(3, 5))


def answer(durable: int | None) -> Message:
    return Message(fields={} if durable is None else {"durable": durable})


def change(sequence: int, num_values: int = 4) -> list[Message]:
    fields = {"rank": 0, "incarnation": 1, "sequence": sequence}
    tensors = {"0.grads": np.ones(num_values, np.float32)}
    return [Message(fields=fields, tensors=tensors)] * 2


def acknowledge(outbox: Outbox, entry: Entry, *durable: int) -> None:
    for server, (term, message) in enumerate(zip((3, 5), entry.messages, strict=True)):
        assert outbox.note(server, term, message, answer(durable[server]))


def test_a_change_is_kept_until_every_pserver_has_it_on_its_disk() -> None:
    outbox = Outbox(PLACEMENT)
    entry = outbox.add("push", change(1))
    acknowledge(outbox, entry, 1, 1)
    assert (len(outbox), outbox.num_bytes) == (1, 32)

    assert outbox.note(0, 3, Message(), answer(2))
    assert len(outbox) == 1
    assert outbox.note(1, 5, Message(), answer(2))
    assert (len(outbox), outbox.num_bytes) == (0, 0)


def test_a_pserver_without_a_disk_keeps_nothing_waiting() -> None:
    outbox = Outbox(PLACEMENT)
    assert outbox.note(0, 3, Message(), answer(None))
    states = [outbox.is_on]
    assert outbox.note(0, 3, Message(), answer(1))
    states.append(outbox.is_on)
    assert states == [False, True]
    entry = outbox.add("push", change(1))
    outbox.note(0, 3, entry.messages[0], answer(2))
    assert len(outbox) == 0


def test_what_was_taken_under_an_older_term_and_is_lacking_is_sent_again() -> None:
    outbox = Outbox(PLACEMENT)
    for sequence in (1, 2, 3, 4):
        entry = outbox.add("push", change(sequence))
        if sequence < 4:  # the last one's answer hasn't come: its call asks again by itself
            acknowledge(outbox, entry, 1, 1)

    outbox.begin_term(1, 6)

    assert [entry.sequence for entry in outbox.lacking(1, 2)] == [2, 3]
    assert outbox.lacking(0, 2) == []


def test_an_answer_of_a_process_that_was_replaced_does_not_count() -> None:
    outbox = Outbox(PLACEMENT)
    outbox.is_on = True
    entry = outbox.add("push", change(1))
    outbox.begin_term(1, 6)

    assert not outbox.note(1, 5, entry.messages[1], answer(9))
    assert outbox.lacking(1, 1) == []
    assert outbox.note(1, 6, entry.messages[1], answer(1))
    assert len(outbox) == 1


def test_a_late_report_of_durability_takes_nothing_back() -> None:
    outbox = Outbox(PLACEMENT)
    for durable in (5, 3):
        outbox.note(1, 5, Message(), answer(durable))
    assert outbox.durable(1) == 5
    assert outbox.is_lost(1, 4)
    assert not outbox.is_lost(1, 5)


def test_it_is_full_by_bytes_or_by_number() -> None:
    outbox = Outbox(PLACEMENT, max_bytes=100, max_entries=3)
    assert outbox.takes(change(1, num_values=3))
    assert not outbox.takes(change(1, num_values=4))
    for sequence in (1, 2, 3):
        assert not outbox.is_full
        outbox.add("push", change(sequence))
    assert outbox.is_full
    assert Outbox(PLACEMENT, max_bytes=32).is_full is False
    few = Outbox(PLACEMENT, max_bytes=32)
    few.add("push", change(1))
    assert few.is_full


def test_the_oldest_change_has_room_in_a_full_one() -> None:
    outbox = Outbox(PLACEMENT, max_entries=2)
    outbox.add("push", change(3))
    assert outbox.may_add(4)
    outbox.add("push", change(4))

    assert outbox.may_add(2)  # the others are durable only after it
    assert outbox.may_add(3)
    assert not outbox.may_add(4)
    assert not outbox.may_add(5)


def test_a_change_of_the_same_sequence_takes_the_place_of_the_former() -> None:
    outbox = Outbox(PLACEMENT)
    first = outbox.add("push", change(1, num_values=8))
    second = outbox.add("push", change(1))
    outbox.drop(first)
    assert (len(outbox), outbox.num_bytes) == (1, 32)
    outbox.drop(second)
    assert (len(outbox), outbox.num_bytes) == (0, 0)


@pytest.mark.parametrize("server", [0, 1])
def test_it_is_sent_again_with_its_ids_and_its_own_numbers(server: int) -> None:
    routed = partition(np.arange(20), PLACEMENT.num_shards)
    rows = RowIds(routed.ids, routed.offsets)
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    write = Write(table="t", values=values, rows=rows, lr=0.5, pulled=7)
    fields = {"rank": 0, "incarnation": 1, "sequence": 1, "step": 3}
    messages = write_messages([write], PLACEMENT, fields, values_name="grads")
    with_pull = [
        Message(
            fields={**message.fields, "pull": [{"table": "t"}]},
            tensors={**message.tensors, "pull.0.ids": np.arange(3)},
        )
        for message in messages
    ]
    plain = Write(table="t", values=values.copy(), rows=rows, lr=0.5)
    wanted = write_messages([plain], PLACEMENT, fields, values_name="grads")[server]
    outbox = Outbox(PLACEMENT)
    entry = outbox.add("step", with_pull, [rows])
    outbox.own(entry)
    values[:] = -1

    again = outbox.message(entry, server)

    assert entry.op == "push"
    assert again.fields == wanted.fields
    assert again.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], tensor)


def test_nobody_takes_in_what_an_exchange_is_answered_with_that_is_sent_again() -> None:
    fields = {"rank": 0, "incarnation": 1, "sequence": 1}
    parts = [{"table": "t", "ack": 4, "max_rows": 1000}, {"table": "u", "max_rows": 1}]
    outbox = Outbox(PLACEMENT)
    entry = outbox.add("exchange", [Message(fields={**fields, "parts": parts})] * 2)
    found = outbox.message(entry, 0).fields["parts"]
    assert [part["max_rows"] for part in found] == [1, 1]
    assert found[0]["ack"] == 4
