"""Commands of passes as plain values and tensors, and back: as their requests on the wire."""

from typing import Any

from numpy.typing import NDArray

from paramfleet_pserver.commands.records import AbortPass, CommitPass, Prepare
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.pass_requests import (
    FIRST_PASS,
    member_of,
    pieces_named,
    prepare_request,
)
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.message import Message

__all__ = [
    "describe_abort",
    "describe_commit",
    "describe_prepare",
    "read_abort",
    "read_commit",
    "read_prepare",
]

_Described = tuple[dict[str, Any], dict[str, NDArray[Any]]]


def describe_prepare(command: Prepare) -> _Described:
    """Return the fields and tensors of a ``Prepare``."""
    prepare = command.prepare
    rank, incarnation, number, piece, pieces = prepare.piece
    about: dict[str, Any] = {"rank": rank, "incarnation": incarnation, "pass": number}
    about |= {"piece": piece, "pieces": pieces}
    tensors = {
        f"{index}.{name}": tensor
        for index, part in enumerate(prepare.parts)
        for name, tensor in part.tensors().items()
    }
    return {**about, "parts": [part.fields() for part in prepare.parts]}, tensors


def describe_commit(command: CommitPass) -> _Described:
    """Return the fields of a ``CommitPass``; it has no tensors."""
    pieces = command.pieces
    named = None if pieces is None else [[rank, count] for rank, count in pieces.items()]
    return {**describe_abort(command)[0], "pieces": named}, {}


def describe_abort(command: AbortPass | CommitPass) -> _Described:
    """Return the fields of an ``AbortPass``; it has no tensors."""
    about = {"rank": command.rank, "incarnation": command.incarnation}
    return about | {"pass": command.number}, {}


def read_prepare(message: Message, store: TableStore) -> Prepare:
    """Read a ``Prepare``. Raises as ``prepare_request`` does."""
    return Prepare(prepare_request(message, store))


def read_commit(message: Message) -> CommitPass:
    """Read a ``CommitPass``, or a ``commit_pass``.

    Raises:
        MalformedMessageError: if a field is missing or wrong.
    """
    fields = Fields(message.fields, where="commit_pass")
    rank, incarnation = member_of(fields)
    pieces = pieces_named(message.fields.get("pieces"))
    return CommitPass(rank, incarnation, fields.integer("pass", least=FIRST_PASS), pieces)


def read_abort(message: Message) -> AbortPass:
    """Read an ``AbortPass``, or an ``abort_pass``.

    Raises:
        MalformedMessageError: if a field is missing or wrong.
    """
    fields = Fields(message.fields, where="abort_pass")
    rank, incarnation = member_of(fields)
    return AbortPass(rank, incarnation, fields.integer("pass", least=FIRST_PASS))
