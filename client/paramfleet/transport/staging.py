"""Requests with more dense numbers than one may carry: what goes ahead of them, in pieces.

A request keeps its meaning. What is too large of it goes ahead by ``stage``, and the request
names it. Sans-io.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paramfleet.config.dense_limits import DenseLimits
from paramfleet_shared.net.wire.message import Message

if TYPE_CHECKING:
    from itertools import count

__all__ = ["Ahead"]

_DENSE_WRITES = frozenset({"push", "exchange", "assign"})


class Ahead:
    """What goes ahead of one operation, and the messages that name it.

    Args:
        op: The operation.
        messages: One for each pserver, with the same tensors.
        limits: How much may be in one.
        numbers: Makes numbers that this worker hasn't used before.
    """

    def __init__(
        self, op: str, messages: Sequence[Message], limits: DenseLimits, numbers: "count[int]"
    ) -> None:
        self._messages = messages
        self._piece_values = limits.piece_values
        names = _too_large(messages, limits.request_bytes) if op in _DENSE_WRITES else []
        self._numbers = {name: next(numbers) for name in names}
        self._is_exchange = op == "exchange"

    def __bool__(self) -> bool:
        """Return whether anything goes ahead."""
        return bool(self._numbers)

    def pieces(self) -> Iterator[tuple[str, list[Message]]]:
        """Yield table and messages, one for each pserver, by which the pieces go."""
        size = self._piece_values
        for name, number in self._numbers.items():
            table = _table_of(self._messages[0], name)
            tensors = [message.tensors[name] for message in self._messages]
            for start in range(0, max(map(len, tensors)), size):
                messages = []
                for message, tensor in zip(self._messages, tensors, strict=True):
                    first = min(start, len(tensor))
                    fields = {
                        "rank": message.fields["rank"],
                        "incarnation": message.fields["incarnation"],
                        "table": table,
                        "number": number,
                        "start": first,
                    }
                    piece = {"piece": tensor[first : first + size]}
                    messages.append(Message(fields=fields, tensors=piece))
                yield table, messages

    def messages(self) -> list[Message]:
        """Return the operation's messages, which name what went ahead."""
        return [self._naming(message) for message in self._messages]

    def _naming(self, message: Message) -> Message:
        tensors = dict(message.tensors)
        fields = dict(message.fields)
        fields["staged"] = [
            {"tensor": name, "table": _table_of(message, name), "number": number}
            for name, number in self._numbers.items()
        ]
        for name in self._numbers:
            del tensors[name]
        if self._is_exchange:  # what is too large to send is too large to be answered
            fields["parts"] = parts = list(fields["parts"])
            for name in self._numbers:
                index = _index_of(name)
                parts[index] = {**parts[index], "quiet": True}
        return replace(message, fields=fields, tensors=tensors)


def _too_large(messages: Sequence[Message], limit_bytes: int) -> list[str]:
    """Return the names of dense numbers that go ahead: the largest, until the rest fits."""
    sizes = {
        name: max(message.tensors[name].nbytes for message in messages)
        for name in messages[0].tensors
        if _is_dense(messages[0], name)
    }
    left, names = sum(sizes.values()), []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if left <= limit_bytes:
            break
        left -= sizes[name]
        names.append(name)
    return names


def _is_dense(message: Message, name: str) -> bool:
    """Return whether a tensor holds numbers of a dense table, which come without ids."""
    if name == "rows":
        return True
    if not name.endswith((".grads", ".deltas")):
        return False
    index = _index_of(name)
    about: Mapping[str, Any] = message.fields["parts"][index]
    return "ids" not in about and f"{index}.offsets" not in message.tensors


def _table_of(message: Message, name: str) -> str:
    if name == "rows":
        return str(message.fields["table"])
    return str(message.fields["parts"][_index_of(name)]["table"])


def _index_of(name: str) -> int:
    return int(name.partition(".")[0])
