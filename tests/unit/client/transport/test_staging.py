"""What goes ahead of a request that carries too many dense numbers, and how it is named."""

from itertools import count
from typing import Any

import numpy as np
import pytest

from paramfleet.config.dense_limits import DenseLimits
from paramfleet.transport.staging import Ahead
from paramfleet_shared.net.wire.message import Message

LIMITS = DenseLimits(request_bytes=16_384)  # pieces of 1024 values


def push(*lengths: int, tensor: str = "grads") -> Message:
    """Return a request of dense tables of so many values."""
    parts = [{"table": f"t{index}"} for index in range(len(lengths))]
    tensors = {
        f"{index}.{tensor}": np.arange(length, dtype=np.float32)
        for index, length in enumerate(lengths)
    }
    return Message(fields={"rank": 1, "incarnation": 2, "parts": parts}, tensors=tensors)


def ahead(*messages: Message, op: str = "push") -> Ahead:
    return Ahead(op, messages, LIMITS, count(7))


def test_what_fits_goes_with_the_request() -> None:
    assert not ahead(push(4000, 96))
    assert ahead(push(4000, 97))


def test_the_largest_goes_ahead_until_the_rest_fits() -> None:
    message = push(3000, 5000, 1096)

    (named,) = ahead(message).messages()

    assert named.fields["staged"] == [{"tensor": "1.grads", "table": "t1", "number": 7}]
    assert sorted(named.tensors) == ["0.grads", "2.grads"]
    assert named.fields["parts"] == message.fields["parts"]


def test_pieces_hold_every_value_of_every_pserver_once() -> None:
    messages = [push(5000), push(3001)]
    whole = [np.full(5000, np.nan, np.float32), np.full(3001, np.nan, np.float32)]

    for table, pieces in ahead(*messages).pieces():
        assert table == "t0"
        for server, piece in enumerate(pieces):
            values, start = piece.tensors["piece"], piece.fields["start"]
            assert len(values) <= LIMITS.piece_values
            assert piece.fields["number"] == 7
            whole[server][start : start + len(values)] = values

    for server, message in enumerate(messages):
        np.testing.assert_array_equal(whole[server], message.tensors["0.grads"])


def test_what_one_pserver_gets_ahead_all_do() -> None:
    named = ahead(push(4097), push(4096)).messages()

    assert [len(message.fields["staged"]) for message in named] == [1, 1]


def test_an_exchange_asks_for_no_answer_of_what_is_too_large() -> None:
    (named,) = ahead(push(9000, 10, tensor="deltas"), op="exchange").messages()

    assert [part.get("quiet", False) for part in named.fields["parts"]] == [True, False]


@pytest.mark.parametrize("op", ["pull", "declare", "leave"])
def test_other_operations_are_left_alone(op: str) -> None:
    assert not ahead(push(9000), op=op)


def test_rows_of_sparse_tables_are_left_alone() -> None:
    message = push(9000, 9000)
    tensors: dict[str, Any] = {**message.tensors, "1.offsets": np.zeros(2, np.int64)}
    message.fields["parts"][0]["ids"] = "same"

    assert not ahead(Message(fields=message.fields, tensors=tensors))


def test_first_values_go_ahead_by_their_own_name() -> None:
    fields = {"rank": 0, "incarnation": 1, "table": "w"}
    rows = np.zeros(5000, np.float32)

    (named,) = ahead(Message(fields=fields, tensors={"rows": rows}), op="assign").messages()

    assert named.fields["staged"] == [{"tensor": "rows", "table": "w", "number": 7}]
    assert not named.tensors


def test_a_piece_holds_whole_blocks_of_a_scale() -> None:
    assert DenseLimits(request_bytes=4096).piece_values == 256
    assert DenseLimits(request_bytes=5000).piece_values == 256
    assert DenseLimits().piece_values % 256 == 0
