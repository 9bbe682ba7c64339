"""Bytes between this worker and the pservers, by operation and by table.

The communicator's loop and the training thread count, one at a time; other threads read: a
value is replaced as a whole.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paramfleet_shared.net.http2.stream import Held
from paramfleet_shared.net.wire.identity import NORMS, PROGRESS
from paramfleet_shared.net.wire.message import Message

__all__ = ["OF_TABLES", "Traffic"]

OF_TABLES = frozenset({"pull", "push", "step", "exchange"})
"""Operations whose parts are tables."""


class Traffic:
    """Counts the bodies of requests and answers; retries and HTTP/2's framing are not in.

    Args:
        held: Returns what bodies on their way hold; any thread may ask.
    """

    def __init__(self, held: Callable[[], Held] = Held) -> None:
        self.held = held
        self._counting = threading.Lock()
        self.sent_bytes: dict[str, int] = {}
        """By operation: bodies of requests, headers included."""
        self.received_bytes: dict[str, int] = {}
        """By operation: bodies of answers."""
        self.table_bytes: dict[str, int] = {}
        """By table: ids and numbers of pulls, pushes and exchanges, both ways."""
        self.call_times: dict[str, tuple[int, float]] = {}
        """By operation, of calls that wait for no other worker: how many, and their seconds
        from sending to the last pserver's answer."""

    def count(self, op: str, num_sent: int, num_received: int) -> None:
        """Count a call to one pserver."""
        with self._counting:
            _add(self.sent_bytes, op, num_sent)
            _add(self.received_bytes, op, num_received)

    def count_time(self, op: str, seconds: float) -> None:
        """Count how long a call to every pserver took."""
        with self._counting:
            calls, before = self.call_times.get(op, (0, 0.0))
            self.call_times[op] = calls + 1, before + seconds

    def count_tables(self, messages: Sequence[Message], answers: Sequence[Message]) -> None:
        """Count what a call to every pserver, one of ``OF_TABLES``, carried of each table."""
        with self._counting:
            for message, answer in zip(messages, answers, strict=True):
                fields = message.fields
                pulled = fields.get("pull")  # of a step, whose answer is the pull's
                self._count(message, fields["parts"], pulled)
                self._count(answer, fields["parts"] if pulled is None else pulled, pulled)

    def _count(
        self,
        message: Message,
        parts: Sequence[Mapping[str, Any]],
        pulled: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        for name, array in message.tensors.items():
            if name in {PROGRESS, NORMS}:  # of no table
                continue
            which, _, rest = name.partition(".")
            if which == "pull" and pulled is not None:
                about = pulled[int(rest[: rest.index(".")])]
            else:
                about = parts[int(which)]
            _add(self.table_bytes, about["table"], array.nbytes)

    def count_pieces(self, table: str, messages: Sequence[Message]) -> None:
        """Count pieces of a table that went ahead of a request."""
        with self._counting:
            for message in messages:
                _add(self.table_bytes, table, message.tensors["piece"].nbytes)


def _add(counts: dict[str, int], key: str, more: int) -> None:
    counts[key] = counts.get(key, 0) + more
