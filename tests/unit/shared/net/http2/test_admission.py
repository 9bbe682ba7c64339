"""What a server takes on, refuses, cuts off and finishes."""

import pytest
from hyperframe.frame import GoAwayFrame, RstStreamFrame

from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.http2.events import (
    ConnectionEnded,
    RequestReceived,
    RequestTooLarge,
    ResponseReceived,
    ResponseTooLarge,
    StreamLost,
)
from paramfleet_shared.net.http2.frames import ErrorCode
from paramfleet_shared.net.http2.server import ServerConnection
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.testing.http2_ends import OurEnd, PlainEnd, exchange

POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/a")]


class Pair:
    """A client and a server of ours that know each other's settings."""

    def __init__(self, server_limits: Limits, client_limits: Limits | None = None) -> None:
        self.client = ClientConnection(client_limits or Limits(), 0.0)
        self.server = ServerConnection(server_limits, 0.0)
        self.left, self.right = OurEnd(self.client), OurEnd(self.server)
        exchange(self.left, self.right)
        self.left.events.clear()

    def request(self, num_bytes: int) -> int:
        headers = [*POST, (b"content-length", b"%d" % num_bytes)]
        return self.client.request(headers, [bytes(num_bytes)], self.left.now)

    def exchange(self) -> None:
        exchange(self.left, self.right)


def lost_of(end: OurEnd) -> dict[int, bool]:
    return {e.stream_id: e.processed for e in end.events if isinstance(e, StreamLost)}


def test_a_body_over_the_limit_is_answered_before_it_comes() -> None:
    pair = Pair(Limits(max_body_bytes=1000, stream_window_bytes=2000))
    stream = pair.request(1_000_000)
    pair.exchange()

    assert pair.right.events == [RequestTooLarge(stream, 1_000_000)]
    pair.server.respond(stream, 413, [], [b"too large"])
    pair.exchange()

    answer = pair.left.events[0]
    assert isinstance(answer, ResponseReceived)
    assert (answer.status, bytes(answer.body)) == (413, b"too large")
    assert pair.client.num_streams == pair.server.num_streams == 0
    assert pair.client.end_reason is pair.server.end_reason is None


def test_a_body_that_grows_over_the_limit_is_told_apart_from_a_declared_one() -> None:
    server = ServerConnection(Limits(max_body_bytes=100_000, stream_window_bytes=150_000), 0.0)
    right, left = OurEnd(server), PlainEnd(client_side=True)
    exchange(left, right)

    stream = left.request(bytes(300_000))
    exchange(left, right)
    too_large = right.events_of(RequestTooLarge)
    server.respond(stream, 413, [], [b"no"])
    exchange(left, right)

    assert len(too_large) == 1
    assert left.reset == {stream: ErrorCode.NO_ERROR}
    assert bytes(left.received[stream]) == b"no"


def test_an_overlong_body_that_soon_ends_is_left_to_end() -> None:
    server = ServerConnection(Limits(max_body_bytes=10), 0.0)
    right, left = OurEnd(server), PlainEnd(client_side=True)
    exchange(left, right)
    left.h2.send_headers(1, [*POST, (b"content-length", b"20")])
    exchange(left, right)
    server.respond(1, 413, [], [b"no"])
    exchange(left, right)

    assert (left.ended, left.reset, server.num_streams) == ([1], {}, 1)
    left.h2.send_data(1, bytes(20), end_stream=True)
    exchange(left, right)
    assert (left.reset, server.num_streams) == ({}, 0)


def test_a_body_over_the_limit_that_came_wholly_is_answered_once() -> None:
    pair = Pair(Limits(max_body_bytes=1000))
    stream = pair.request(5000)
    pair.exchange()

    assert pair.right.events == [RequestTooLarge(stream, 5000)]
    pair.server.respond(stream, 413, [], [b"no"])
    pair.exchange()
    assert pair.left.events_of(ResponseReceived)
    assert pair.server.num_streams == 0


def test_one_stream_too_many_is_refused_and_the_others_go_on() -> None:
    server = ServerConnection(Limits(max_streams=2), 0.0)
    right, left = OurEnd(server), PlainEnd(client_side=True)

    streams = [left.request(b"x") for _ in range(3)]  # before the settings came
    exchange(left, right)

    assert left.reset == {streams[2]: ErrorCode.REFUSED_STREAM}
    assert [e.stream_id for e in right.events if isinstance(e, RequestReceived)] == streams[:2]


def test_the_byte_budget_refuses_what_would_not_fit_and_takes_it_later() -> None:
    pair = Pair(Limits(body_budget_bytes=10_000))
    first, second = pair.request(8_000), pair.request(8_000)
    pair.exchange()

    assert lost_of(pair.left) == {second: False}
    pair.server.respond(first, 200, [], [b"ok"])
    pair.exchange()
    third = pair.request(8_000)
    pair.exchange()
    assert [e.stream_id for e in pair.right.events if isinstance(e, RequestReceived)] == [
        first,
        third,
    ]


def test_answers_that_nobody_reads_count_against_the_budget() -> None:
    pair = Pair(Limits(body_budget_bytes=10_000), Limits(stream_window_bytes=100))
    first = pair.request(10)
    pair.right.feed(pair.left.take())

    pair.server.respond(first, 200, [], [bytes(20_000)])
    pair.right.take()
    second = pair.request(10)
    pair.right.feed(pair.left.take())
    pair.left.feed(pair.right.take())

    assert lost_of(pair.left) == {second: False}


def test_a_body_over_the_budget_is_taken_when_it_is_alone() -> None:
    pair = Pair(Limits(body_budget_bytes=100))
    stream = pair.request(5_000)
    pair.exchange()

    assert [e.stream_id for e in pair.right.events if isinstance(e, RequestReceived)] == [
        stream
    ]


def test_a_body_of_unknown_length_that_outgrows_the_budget_is_refused() -> None:
    server = ServerConnection(Limits(body_budget_bytes=100_000), 0.0)
    right, left = OurEnd(server), PlainEnd(client_side=True)
    exchange(left, right)

    small = left.request(b"first")
    growing = left.request(bytes(400_000))
    exchange(left, right)

    assert left.reset == {growing: ErrorCode.REFUSED_STREAM}
    assert [e.stream_id for e in right.events if isinstance(e, RequestReceived)] == [small]


def test_a_body_that_makes_no_progress_is_reset_and_a_moving_one_is_not() -> None:
    server = ServerConnection(Limits(body_idle_timeout_s=10.0), 0.0)
    right, left = OurEnd(server), PlainEnd(client_side=True)
    exchange(left, right)
    for stream in (1, 3):
        left.h2.send_headers(stream, [*POST, (b"content-length", b"20")])
        left.h2.send_data(stream, b"begun")
    exchange(left, right)

    assert server.expire(9.0) == []
    left.h2.send_data(3, b"more")
    right.now = 9.0
    exchange(left, right)
    events = server.expire(10.5)
    exchange(left, right)

    assert events == [StreamLost(1, "its body made no progress", processed=True)]
    assert left.reset == {1: ErrorCode.CANCEL}
    assert server.num_streams == 1
    assert server.expire(30.0) == [StreamLost(3, "its body made no progress", processed=True)]


def test_a_client_that_reads_nothing_of_its_answer_is_reset() -> None:
    pair = Pair(Limits(body_idle_timeout_s=10.0), Limits(stream_window_bytes=100))
    stream = pair.request(1)
    pair.exchange()
    pair.server.respond(stream, 200, [], [bytes(1000)])
    pair.right.take()  # what the window allows; nothing comes back

    pair.server.expire(11.0)

    assert pair.server.num_streams == 0


def test_a_call_whose_handler_takes_long_is_not_stuck() -> None:
    pair = Pair(Limits(body_idle_timeout_s=10.0))
    pair.request(10)
    pair.exchange()

    assert pair.server.expire(1000.0) == []


def test_a_call_given_up_reaches_the_owner_of_the_server() -> None:
    pair = Pair(Limits())
    stream = pair.request(10)
    pair.exchange()

    pair.client.reset(stream, ErrorCode.CANCEL)
    pair.exchange()
    pair.server.respond(stream, 200, [], [b"too late"])
    pair.exchange()

    assert lost_of(pair.right) == {stream: True}
    assert pair.left.events == []


def test_an_answer_over_the_limit_is_given_up_by_the_client() -> None:
    pair = Pair(Limits(), Limits(max_body_bytes=100))
    stream = pair.request(10)
    pair.exchange()
    pair.server.respond(stream, 200, [], [bytes(5_000)])
    pair.exchange()

    assert pair.left.events == [ResponseTooLarge(stream, 5_000)]
    assert pair.client.num_streams == pair.server.num_streams == 0


def test_an_answer_without_a_body_is_one() -> None:
    pair = Pair(Limits())
    stream = pair.request(0)
    pair.exchange()
    pair.server.respond(stream, 204, [], [])
    pair.exchange()

    answer = pair.left.events[0]
    assert isinstance(answer, ResponseReceived)
    assert (answer.status, len(answer.body)) == (204, 0)


def test_head_is_answered_without_a_body() -> None:
    server = ServerConnection(Limits(), 0.0)
    right, left = OurEnd(server), PlainEnd(client_side=True)
    exchange(left, right)
    left.h2.send_headers(1, [(b":method", b"HEAD"), *POST[1:]], end_stream=True)
    exchange(left, right)

    server.respond_to_head(1, 200, [], 300)
    server.respond_to_head(7, 200, [], 300)
    exchange(left, right)

    assert left.ended == [1]
    assert left.received == {}


def test_an_early_answer_spares_the_rest_of_the_request() -> None:
    pair = Pair(Limits(stream_window_bytes=100))
    stream = pair.request(100_000)
    pair.right.feed(pair.left.take())

    pair.server.respond(stream, 200, [], [b"enough"])
    pair.exchange()

    answers = [e for e in pair.left.events if isinstance(e, ResponseReceived)]
    assert [bytes(e.body) for e in answers] == [b"enough"]
    assert pair.client.num_streams == pair.server.num_streams == 0


def test_draining_serves_what_was_on_its_way_and_then_ends() -> None:
    pair = Pair(Limits())
    first = pair.request(10)
    pair.exchange()

    pair.server.drain()
    pair.server.drain()
    on_its_way = pair.request(10)
    pair.exchange()

    assert pair.client.draining
    assert not pair.server.has_drained()
    for stream in (first, on_its_way):
        pair.server.respond(stream, 200, [], [b"ok"])
    pair.exchange()
    assert pair.server.has_drained()
    assert [e.stream_id for e in pair.left.events if isinstance(e, ResponseReceived)] == [
        first,
        on_its_way,
    ]


def test_a_leaving_server_gives_back_what_it_did_not_take() -> None:
    pair = Pair(Limits())
    taken = pair.request(10)
    pair.exchange()
    not_taken = pair.request(10)
    pair.left.take()  # lost on the way

    pair.server.close()
    pair.exchange()

    assert lost_of(pair.left) == {not_taken: False}
    assert pair.client.lost("closed")[0] == StreamLost(taken, "closed", processed=True)


def test_what_a_server_sends_for_a_call_it_gave_back_is_ignored() -> None:
    client, plain = OurEnd(ClientConnection(Limits(), 0.0)), PlainEnd(client_side=False)
    connection = client.connection
    assert isinstance(connection, ClientConnection)
    exchange(client, plain)
    answered = connection.request(POST, [b"x"], 0.0)
    reset = connection.request(POST, [b"x"], 0.0)
    plain.feed(client.take())
    client.feed(GoAwayFrame(0, last_stream_id=0).serialize())

    client.feed(RstStreamFrame(reset).serialize())
    exchange(client, plain)  # it answers the other all the same

    assert lost_of(client) == {answered: False, reset: False}
    assert client.events_of(ResponseReceived) == []
    assert connection.end_reason is None


def test_a_connection_whose_stream_numbers_are_used_up_takes_no_more_calls() -> None:
    pair = Pair(Limits())
    pair.client._next_stream_id = (1 << 31) - 3

    last = pair.request(1)
    pair.exchange()
    pair.server.respond(last, 200, [], [b"ok"])
    pair.exchange()

    assert pair.client.draining
    assert pair.left.events_of(ResponseReceived)


@pytest.mark.parametrize("code", [ErrorCode.INTERNAL_ERROR, ErrorCode.ENHANCE_YOUR_CALM])
def test_a_goaway_with_an_error_ends_the_connection_at_once(code: ErrorCode) -> None:
    client, plain = OurEnd(ClientConnection(Limits(), 0.0)), PlainEnd(client_side=False)
    exchange(client, plain)

    plain.h2.close_connection(code)
    exchange(client, plain)

    assert client.connection.end_reason == f"the server ended the connection, code {code:d}"
    assert client.events_of(ConnectionEnded)


def test_a_client_that_says_goodbye_may_still_get_its_answers() -> None:
    pair = Pair(Limits())
    stream = pair.request(10)
    pair.exchange()

    pair.client.close()
    exchange(pair.left, pair.right)
    pair.server.respond(stream, 200, [], [b"ok"])

    assert pair.server.end_reason is None
    assert b"ok" in pair.right.take()


def test_a_client_that_ends_with_an_error_ends_the_connection() -> None:
    server = ServerConnection(Limits(), 0.0)
    right, left = OurEnd(server), PlainEnd(client_side=True)
    exchange(left, right)

    left.h2.close_connection(ErrorCode.INTERNAL_ERROR)
    exchange(left, right)

    assert server.end_reason == "the client ended the connection, code 2"
