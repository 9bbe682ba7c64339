"""Changes that pservers have taken, and that may still be lost with one of them.

A pserver that keeps its training on a disk answers before a change is there. So a worker keeps
what it has sent until every pserver reports it durable; to the next process of a pserver that
died it sends again what that one lacks, under the same sequence.

An answer counts only if it is of the process that the worker knows. Sans-io; any thread may use
it.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["MAX_BYTES", "MAX_ENTRIES", "Entry", "Outbox"]

MAX_BYTES = 64 << 20
"""Of all changes that are kept; a larger one is answered when it is durable."""

MAX_ENTRIES = 512
"""Changes that are kept: fewer than may come in any order."""

_OF_PULL = "pull."
"""What names of tensors begin with that belong to the pull of a ``step``."""

_FOREVER = 1 << 62
"""What of a worker's changes is durable with a pserver that keeps nothing on a disk: its death
ends the job."""


@dataclass(eq=False, slots=True)
class Entry:
    """One change."""

    sequence: int
    op: str
    """By which it is sent again."""
    messages: Sequence[Message]
    """One for each pserver."""
    rows: Sequence[RowIds | None]
    """By part, those that the messages name by a pull: who sends it again writes them out."""
    num_bytes: int
    terms: list[int] = field(default_factory=list)
    """Under which term each pserver has taken it; 0 for not yet."""
    is_own: bool = False
    """Whether the tensors are copies, that nobody changes."""


class Outbox:
    """The changes of one worker.

    Args:
        placement: Who hosts what.
        max_bytes: Of all changes that are kept.
        max_entries: How many are kept.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        max_bytes: int = MAX_BYTES,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._placement = placement
        self._max_bytes = max_bytes
        self.max_entries = max_entries
        self._using = threading.Lock()
        self._entries: dict[int, Entry] = {}
        self._terms = [placement.term_of(s) for s in range(placement.num_servers)]
        self._durable = [_FOREVER] * placement.num_servers
        """The first sequence that isn't durable, with each pserver."""
        self.num_bytes = 0
        """Of what is kept."""
        self.is_on = False
        """Whether a pserver keeps the training on a disk."""

    def __len__(self) -> int:
        """Return how many changes are kept."""
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """Return whether a change has to wait."""
        return self.num_bytes >= self._max_bytes or len(self._entries) >= self.max_entries

    def may_add(self, sequence: int) -> bool:
        """Return whether a change may be added now.

        The oldest one always may: what is kept of later ones isn't durable before it.

        Args:
            sequence: The change's.
        """
        with self._using:
            return not self.is_full or sequence <= min(self._entries)

    def takes(self, messages: Sequence[Message]) -> bool:
        """Return whether a change is small enough to be kept."""
        return _num_bytes(messages) <= self._max_bytes // 4

    def term(self, server: int) -> int:
        """Return the process of a pserver that is known."""
        return self._terms[server]

    def add(
        self, op: str, messages: Sequence[Message], rows: Sequence[RowIds | None] = ()
    ) -> Entry:
        """Keep a change that is about to be sent, in place of one of the same sequence.

        Args:
            op: The operation.
            messages: One for each pserver, all of one identity.
            rows: As ``Entry.rows``.
        """
        sequence = int(messages[0].fields["sequence"])
        again = "push" if op == "step" else op
        entry = Entry(
            sequence, again, messages, rows, _num_bytes(messages), [0] * len(messages)
        )
        with self._using:
            self._drop(sequence)
            self._entries[sequence] = entry
            self.num_bytes += entry.num_bytes
        return entry

    def own(self, entry: Entry) -> None:
        """Copy the numbers of a change that was sent: the caller may change its own now."""
        if self._entries.get(entry.sequence) is not entry:
            return  # it is durable already
        messages = [
            Message(
                fields=message.fields,
                tensors={
                    name: np.array(tensor)
                    for name, tensor in message.tensors.items()
                    if not name.startswith(_OF_PULL)
                },
            )
            for message in entry.messages
        ]
        with self._using:
            entry.messages, entry.is_own = messages, True

    def drop(self, entry: Entry) -> None:
        """Keep a change no more: it was given up."""
        with self._using:
            if self._entries.get(entry.sequence) is entry:
                self._drop(entry.sequence)

    def note(self, server: int, term: int, message: Message, answer: Message) -> bool:
        """Take note of an answer; return False if it is of a process that was replaced.

        Args:
            server: Who answered.
            term: Which process of it.
            message: What was asked.
            answer: It.
        """
        durable = answer.fields.get("durable")
        with self._using:
            if term != self._terms[server]:
                return False
            entry = self._entries.get(message.fields.get("sequence", 0))
            if entry is not None:
                entry.terms[server] = max(1, term)
            if type(durable) is int:
                self._reach(server, durable)
        return True

    def begin_term(self, server: int, term: int) -> None:
        """Know another process of a pserver from now on; answers of the one before are void."""
        with self._using:
            self._terms[server] = max(term, self._terms[server])

    def durable(self, server: int) -> int | None:
        """Return the first sequence that isn't durable with a pserver; None for unknown."""
        return None if self._durable[server] == _FOREVER else self._durable[server]

    def is_lost(self, server: int, durable: int) -> bool:
        """Return whether a pserver lacks what it has reported durable before."""
        known = self.durable(server)
        return known is not None and durable < known

    def lacking(self, server: int, durable: int) -> list[Entry]:
        """Return what a former process of a pserver had taken and this one lacks, in order.

        Args:
            server: The pserver.
            durable: The first sequence that it lacks.
        """
        with self._using:
            return [
                entry
                for sequence, entry in sorted(self._entries.items())
                if sequence >= durable and 0 < entry.terms[server] < self._terms[server]
            ]

    def message(self, entry: Entry, server: int) -> Message:
        """Return a change as it is sent again: without its pull, and with its ids."""
        message = entry.messages[server]
        fields = {name: each for name, each in message.fields.items() if name != "pull"}
        tensors = {
            name: tensor
            for name, tensor in message.tensors.items()
            if not name.startswith(_OF_PULL)
        }
        parts: list[dict[str, Any]] = []
        for index, part in enumerate(fields.get("parts", ())):
            about = dict(part)
            if about.get("ids") == "pulled":
                rows = entry.rows[index]
                assert rows is not None, "rows are given for parts that name a pull"
                where, offsets = rows.of(self._placement.shards_of(server))
                tensors[f"{index}.ids"] = rows.ids[where]
                tensors[f"{index}.offsets"] = offsets
                del about["ids"], about["pulled"]
            if "max_rows" in about:
                about["max_rows"] = 1  # nobody takes in what it is answered with
            parts.append(about)
        if parts:
            fields["parts"] = parts
        return Message(fields=fields, tensors=tensors)

    def facts(self) -> dict[str, int]:
        """Return what an operator may ask."""
        return {
            "changes": len(self._entries),
            "bytes": self.num_bytes,
            "limit_bytes": self._max_bytes,
        }

    def _reach(self, server: int, durable: int) -> None:
        self.is_on = True
        before = self._durable[server]
        self._durable[server] = durable if before == _FOREVER else max(before, durable)
        least = min(self._durable)
        for sequence in [each for each in self._entries if each < least]:
            self._drop(sequence)

    def _drop(self, sequence: int) -> None:
        entry = self._entries.pop(sequence, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes


def _num_bytes(messages: Sequence[Message]) -> int:
    return sum(tensor.nbytes for message in messages for tensor in message.tensors.values())
