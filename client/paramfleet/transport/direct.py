"""Calls to all pservers by the thread that waits for them, without the event loop.

For small calls the way to the loop's thread and back is most of their time. Here the thread
writes to connections of its own, one a pserver, and reads the answers. What doesn't come back,
but for a passed deadline, is asked again by the channels, which know of retries and outages.
"""

import threading
from collections.abc import Sequence

from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.connection.direct import (
    DirectLink,
    DirectLostError,
    Waker,
    WokenError,
)
from paramfleet_shared.net.rpc.deadlines import DeadlineExceededError
from paramfleet_shared.net.wire.limits import BodyTooLargeError
from paramfleet_shared.net.wire.message import Message, encode
from paramfleet_shared.system.clock import Clock

__all__ = ["Direct", "Outcome"]

LARGE_BYTES = 256 << 10
"""A longer request goes by the loop, which reads while it writes."""

_RETRY_S = 5.0
"""Seconds between two attempts to have connections."""

Outcome = Message | Exception | None
"""What a pserver answered, or why it didn't; None if it must be asked otherwise."""


class Direct:
    """The connections.

    Opened and closed on the event loop while nobody calls; any thread may call.

    Args:
        channels: To the same pservers.
        clock: Time.
    """

    def __init__(self, channels: Sequence[Channel], clock: Clock) -> None:
        self.waker = Waker()
        """Ends the calls of now and later: they are to be made otherwise."""
        self._channels = channels
        self._now = clock.monotonic
        self._links: list[DirectLink] = []
        self._retry_at = 0.0
        self._calling = threading.Lock()
        self._is_closed = False

    @property
    def is_due(self) -> bool:
        """Return whether ``open`` should be called."""
        return not self._links and not self._is_closed and self._now() >= self._retry_at

    async def open(self) -> None:
        """Connect to all pservers, if they can be reached; else calls go on otherwise."""
        self._retry_at = self._now() + _RETRY_S
        links = []
        for channel in self._channels:
            link = await channel.open_direct(self.waker)
            if link is None:
                break
            links.append(link)
        if len(links) == len(self._channels) and not self._is_closed:
            self._links = links
        else:
            for link in links:
                link.close()

    def call(self, op: str, messages: Sequence[Message], timeout_s: float) -> list[Outcome]:
        """Send one message to each pserver, and wait for the answers.

        Args:
            op: The operation.
            messages: One for each pserver.
            timeout_s: Until when there must be an answer.
        """
        otherwise: list[Outcome] = [None] * len(messages)
        if not self._links or not self._calling.acquire(blocking=False):
            return otherwise
        try:
            return self._call(op, messages, timeout_s)
        except BaseException:  # a signal, say: answers may still be on their way
            self._drop()
            raise
        finally:
            self._calling.release()

    def close(self) -> None:
        """Close them; called once. What is called from now on goes otherwise."""
        self._is_closed = True
        self._drop()
        self.waker.close()

    def _call(self, op: str, messages: Sequence[Message], timeout_s: float) -> list[Outcome]:
        bodies = [encode(message) for message in messages]
        sizes = [sum(map(len, body)) for body in bodies]
        if max(sizes) > LARGE_BYTES or not all(link.usable for link in self._links):
            if not all(link.usable for link in self._links):
                self._drop()
            return [None] * len(messages)
        began = self._now()
        lost: set[int] = set()
        for index, (link, body) in enumerate(zip(self._links, bodies, strict=True)):
            try:
                link.send(op, body, timeout_s=timeout_s)
            except DirectLostError:
                lost.add(index)
        outcomes: list[Outcome] = []
        for index, channel in enumerate(self._channels):
            outcome: Outcome = None
            if index not in lost:
                outcome = self._receive(channel, index, op, sizes[index], began, timeout_s)
            outcomes.append(outcome)
        if lost or any(not isinstance(each, Message | FleetError) for each in outcomes):
            self._drop()
        return outcomes

    def _receive(
        self,
        channel: Channel,
        index: int,
        op: str,
        num_sent: int,
        began: float,
        timeout_s: float,
    ) -> Outcome:
        try:
            response = self._links[index].receive(until=began + timeout_s)
            return channel.read(op, num_sent, response)
        except TimeoutError:
            self._links[index].close()
            waited_s = self._now() - began
            return DeadlineExceededError(peer=channel.peer, operation=op, waited_s=waited_s)
        except (DirectLostError, WokenError):
            return None
        except BodyTooLargeError as error:
            self._links[index].close()
            return error
        except FleetError as error:
            return error

    def _drop(self) -> None:
        """Let the connections go: the pservers see that nobody waits any more."""
        links, self._links = self._links, []
        for link in links:
            link.close()
