"""What follower and owner send each other."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from paramfleet_pserver.core.sums.totals import KeptTotal
from paramfleet_pserver.requests.fields import Fields
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.values.ids import Rank

__all__ = [
    "MOST_COMMANDS",
    "Commands",
    "Fenced",
    "FollowRequest",
    "Purpose",
    "commands_message",
    "fence_message",
    "follow_request",
    "piece_message",
    "read_commands",
    "read_fence",
    "read_name",
    "read_piece",
]

Purpose = Literal["replica", "move"]

PURPOSES: tuple[Purpose, ...] = ("replica", "move")

MOST_COMMANDS = 256
"""In one answer."""

_MAX_NAME = 64


class FollowRequest(NamedTuple):
    """Who asks."""

    follower: str
    session: int
    """Random number of one attempt to follow."""
    fields: Fields


class Commands(NamedTuple):
    """A part of an owner's log."""

    start: int
    """Position of the first one."""
    bodies: Sequence[memoryview]
    position: int
    """Of the owner's last command."""


def follow_request(message: Message, operation: str) -> FollowRequest:
    """Read who follows.

    Raises:
        MalformedMessageError: if a field is missing or of a wrong type.
    """
    fields = Fields(message.fields, where=operation)
    follower = read_name(fields, "follower")
    return FollowRequest(follower, fields.integer("session"), fields)


def read_name(fields: Fields, field: str) -> str:
    """Return by which name a process asks.

    Args:
        fields: Of its request.
        field: Which of them.

    Raises:
        MalformedMessageError: if it isn't a short printable text.
    """
    name = fields.text(field)
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        rule = f"must have 1 to {_MAX_NAME} printable characters"
        raise MalformedMessageError(where=f"field {field!r}", rule=rule)
    return name


def piece_message(part: int, piece: Message, *, is_last: bool) -> Message:
    """Return a message of a snapshot as an answer."""
    fields = {"part": part, "last": is_last, "piece": dict(piece.fields)}
    return Message(fields=fields, tensors=piece.tensors)


def read_piece(answer: Message, part: int) -> tuple[Message, bool]:
    """Return a snapshot's message of an answer, and whether it is the last one.

    Raises:
        MalformedMessageError: if it isn't the one that was asked for.
    """
    fields = Fields(answer.fields, where="follow_snapshot")
    if fields.integer("part") != part:
        raise MalformedMessageError(where="field 'part'", rule=f"must be {part}")
    piece: Mapping[str, Any] = fields.map("piece")
    return Message(fields=piece, tensors=answer.tensors), fields.flag("last")


class Fenced(NamedTuple):
    """What an owner answers that executes nothing any more."""

    position: int
    """Of the last command."""
    term: int
    """Under which it was stopped."""
    totals: Sequence[KeptTotal]
    """Of the step in progress; they aren't commands."""


def fence_message(position: int, totals: Sequence[KeptTotal], *, term: int) -> Message:
    """Return what a follower needs beside the commands; see ``Fenced``."""
    about = [
        [each.name, -1 if each.rank is None else each.rank, len(each.values)] for each in totals
    ]
    values = [each.values for each in totals]
    tensors = {"totals": np.concatenate(values)} if values else {}
    fields = {"position": position, "term": term, "totals": about}
    return Message(fields=fields, tensors=tensors)


def read_fence(answer: Message) -> Fenced:
    """Return what an owner has answered.

    Raises:
        MalformedMessageError: if they aren't there.
    """
    fields, totals, at = Fields(answer.fields, where="fence"), list[KeptTotal](), 0
    values = answer.tensors.get("totals", np.empty(0))
    about = answer.fields.get("totals")
    if values.dtype != np.float64 or values.ndim != 1 or type(about) is not list:
        raise MalformedMessageError(where="fence", rule="must say which sums there are")
    for each in about:
        kinds = [type(one) for one in each] if type(each) is list else []
        if kinds != [str, int, int] or each[1] < -1 or not 0 <= each[2] <= len(values) - at:
            raise MalformedMessageError(where="fence", rule="must have a sum's numbers")
        name, rank, length = each
        of = None if rank < 0 else Rank(rank)
        totals.append(KeptTotal(name, of, values[at : at + length]))
        at += length
    return Fenced(fields.integer("position"), fields.integer("term"), totals)


def commands_message(start: int, bodies: Sequence[bytes], *, position: int) -> Message:
    """Return commands as an answer: their bytes as they are."""
    tensors = {str(index): np.frombuffer(body, np.uint8) for index, body in enumerate(bodies)}
    return Message(fields={"start": start, "position": position}, tensors=tensors)


def read_commands(answer: Message, start: int) -> Commands:
    """Return the commands of an answer.

    Raises:
        MalformedMessageError: if they aren't those that were asked for.
    """
    fields = Fields(answer.fields, where="follow_log")
    position, num = fields.integer("position"), len(answer.tensors)
    if fields.integer("start") != start or position < start + num - 1:
        rule = f"must be {start}, and the owner's position not before the end"
        raise MalformedMessageError(where="field 'start'", rule=rule)
    if num > MOST_COMMANDS:
        raise MalformedMessageError(
            where="follow_log", rule=f"has over {MOST_COMMANDS} commands"
        )
    bodies = []
    for index, (name, tensor) in enumerate(answer.tensors.items()):
        if name != str(index) or tensor.dtype != np.uint8 or tensor.ndim != 1:
            raise MalformedMessageError(where=f"tensor {name!r}", rule="must be a command")
        bodies.append(tensor.data)
    return Commands(start, bodies, position)
