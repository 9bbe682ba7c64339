"""Bytes that bodies of many connections hold together."""

import pytest

from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.http2.events import RequestReceived, ResponseReceived, StreamLost
from paramfleet_shared.net.http2.frames import ErrorCode
from paramfleet_shared.net.http2.limits.budget import BodyBudget
from paramfleet_shared.net.http2.server import ServerConnection
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.testing.http2_ends import OurEnd, PlainEnd, exchange

POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/a")]


class Pair:
    """A connection of a server that has others."""

    def __init__(
        self,
        budget: BodyBudget,
        limits: Limits | None = None,
        client_limits: Limits | None = None,
    ) -> None:
        self.client = ClientConnection(client_limits or Limits(), 0.0)
        self.server = ServerConnection(limits or Limits(), 0.0)
        self.server.share = budget.share()
        self.left, self.right = OurEnd(self.client), OurEnd(self.server)
        exchange(self.left, self.right)

    def begin(self, num_bytes: int) -> int:
        """Send the headers of a request, and nothing of its body."""
        headers = [*POST, (b"content-length", b"%d" % num_bytes)]
        stream = self.client.request(headers, [bytes(num_bytes)], 0.0)
        sender = self.client._sender
        self.right.feed(b"".join(sender.take()))
        return stream

    def refused(self) -> list[int]:
        """Return the streams that were lost, which may all be sent again."""
        self.left.feed(self.right.take())
        lost = [each for each in self.left.events if isinstance(each, StreamLost)]
        assert not any(each.processed for each in lost)
        return [each.stream_id for each in lost]

    def exchange(self) -> None:
        exchange(self.left, self.right)


def test_bodies_of_many_connections_share_what_their_server_has() -> None:
    budget = BodyBudget(100_000)
    pairs = [Pair(budget) for _ in range(5)]

    streams = [pair.begin(30_000) for pair in pairs]

    assert [pair.refused() for pair in pairs] == [[], [], [], [streams[3]], [streams[4]]]
    assert (budget.num_held, budget.num_refused) == (90_000, 2)


def test_a_refused_request_may_be_sent_again_when_others_have_come_whole() -> None:
    budget = BodyBudget(50_000)
    first, second = Pair(budget), Pair(budget)
    first.begin(40_000)
    lost = second.begin(40_000)
    assert second.refused() == [lost]

    first.exchange()
    second.begin(40_000)
    second.exchange()

    assert first.right.events_of(RequestReceived)
    assert second.right.events_of(RequestReceived)


def test_a_request_that_waits_in_its_handler_takes_none_of_it() -> None:
    budget = BodyBudget(50_000)
    first, second = Pair(budget), Pair(budget)
    first.begin(40_000)
    first.exchange()  # nobody answers: it may wait for the second one

    second.begin(40_000)
    second.exchange()

    assert second.right.events_of(RequestReceived)
    assert budget.num_held == 0


def test_one_body_alone_always_comes_in() -> None:
    budget = BodyBudget(10)
    pair = Pair(budget)

    pair.begin(1_000_000)
    pair.exchange()

    assert pair.right.events_of(RequestReceived)


def test_answers_count_until_their_last_byte_has_left() -> None:
    budget = BodyBudget(50_000)
    slow, other = Pair(budget, client_limits=Limits(stream_window_bytes=100)), Pair(budget)
    stream = slow.begin(10)
    slow.right.feed(slow.left.take())
    slow.server.respond(stream, 200, [], [bytes(200_000)])
    slow.left.feed(slow.right.take())  # what the window allows

    assert budget.num_held == 200_000
    assert other.refused() == []
    lost = other.begin(20_000)
    assert other.refused() == [lost]
    slow.exchange()
    assert slow.left.events_of(ResponseReceived)
    assert budget.num_held == 0


def test_bodies_of_unknown_length_count_as_they_grow() -> None:
    budget = BodyBudget(300_000)
    holder = Pair(budget)
    holder.begin(150_000)
    server = ServerConnection(Limits(), 0.0)
    server.share = budget.share()
    right, left = OurEnd(server), PlainEnd(client_side=True)
    exchange(left, right)

    stream = left.request(bytes(1_000_000))
    exchange(left, right)

    assert left.reset == {stream: ErrorCode.REFUSED_STREAM}
    assert budget.num_held == 150_000


@pytest.mark.parametrize("end", ["lost", "reset", "expired", "too large"])
def test_whatever_ends_a_body_gives_its_bytes_back(end: str) -> None:
    budget = BodyBudget(1 << 30)
    pair = Pair(budget, Limits(max_body_bytes=1_000_000, body_idle_timeout_s=1.0))
    stream = pair.begin(900_000)
    assert budget.num_held == 900_000

    match end:
        case "lost":
            pair.server.lost("gone")
        case "reset":
            pair.client.reset(stream, ErrorCode.CANCEL)
            pair.exchange()
        case "expired":
            pair.server.expire(5.0)
        case _:
            pair.server.lost("gone")
            pair = Pair(budget, Limits(max_body_bytes=1_000_000))
            pair.begin(2_000_000)

    assert budget.num_held == 0


def test_one_machine_gets_its_share_and_leaves_the_rest() -> None:
    budget = BodyBudget(100)
    here, there = budget.share(50), budget.share(50)

    assert here.take(40)
    assert not here.take(20)
    assert there.take(20)
    assert budget.num_refused == 1


def test_a_share_that_holds_nothing_takes_one_body_if_all_have_memory() -> None:
    budget = BodyBudget(100)

    assert budget.share(50).take(10)
    assert budget.share(50).take(80)
    assert not budget.share(50).take(20)
