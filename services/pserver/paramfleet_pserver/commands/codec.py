"""Commands as bytes, and back: messages whose fields begin with the command's kind."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.commands.geo import ANNOUNCED_ROWS
from paramfleet_pserver.commands.pass_codec import (
    describe_abort,
    describe_commit,
    describe_prepare,
    read_abort,
    read_commit,
    read_prepare,
)
from paramfleet_pserver.commands.records import (
    AbortPass,
    Announce,
    Announced,
    Assign,
    Begin,
    BeginTerm,
    Command,
    CommitPass,
    Confirm,
    Contribute,
    Create,
    Discount,
    Exchange,
    Fence,
    Join,
    Leave,
    Limit,
    Load,
    Lose,
    Make,
    Origin,
    Prepare,
    Remove,
    Retire,
    Update,
    Void,
    WriteRows,
)
from paramfleet_pserver.requests.changes import identity_of
from paramfleet_pserver.requests.checked import (
    ExchangePart,
    ExchangeRequest,
    PushPart,
    PushRequest,
    exchange_request,
    push_request,
    spec_of,
)
from paramfleet_pserver.requests.dense_requests import assign_request
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.row_requests import (
    discount_request,
    remove_request,
    write_request,
)
from paramfleet_pserver.requests.table_codec import describe_table, read_table
from paramfleet_pserver.requests.tensors import PartIds
from paramfleet_pserver.tables.parts import SparsePart
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import NORMS, PROGRESS
from paramfleet_shared.net.wire.message import MalformedMessageError, Message, decode, encode
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["command_of", "from_bytes", "message_of", "to_bytes"]


def to_bytes(command: Command) -> bytes:
    """Return a command as one message."""
    return b"".join(encode(message_of(command)))


def from_bytes(body: bytes | bytearray | memoryview, store: TableStore) -> Command:
    """Read a command; its tensors are views of ``body``.

    Raises:
        MalformedMessageError: if it isn't one.
        UnknownTableError: if a table isn't there.
        RowShapeError: if a tensor's dtype or shape is wrong.
        FleetError: why a load's tables can't be built here; see ``TableStore.check`` and
            ``check_limits``.
    """
    return command_of(decode(body), store)


def message_of(command: Command) -> Message:
    """Return a command as plain values and tensors, which are views of its own."""
    fields, tensors = _DESCRIBED[type(command)](command)
    kind = _KINDS[type(command)]
    return Message(fields={"kind": kind, **fields}, tensors=tensors)


def command_of(message: Message, store: TableStore) -> Command:
    """Read a command, as ``from_bytes`` does.

    Raises:
        MalformedMessageError: if it isn't one.
    """
    kind = message.fields.get("kind")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        rule = f"must be one of {', '.join(_READERS)}"
        raise MalformedMessageError(where="command field 'kind'", rule=rule)
    return read(message, store)


_Described = tuple[dict[str, Any], dict[str, NDArray[Any]]]


def _describe_create(command: Create) -> _Described:
    parts = [{"table": table.spec.name} for table, _ in command.new]
    tensors: dict[str, NDArray[Any]] = {}
    for index, (_, rows) in enumerate(command.new):
        tensors |= {f"{index}.ids": rows.ids, f"{index}.offsets": rows.offsets}
    return {"parts": parts}, tensors


def _describe_remove(command: Remove) -> _Described:
    remove = command.remove
    tensors = {"0.ids": remove.rows.ids, "0.offsets": remove.rows.offsets}
    about = {**remove.identity.fields(), "step": remove.step}
    return {**about, "table": remove.table.spec.name}, tensors


def _describe_discount(command: Discount) -> _Described:
    discount = command.discount
    rows, about = discount.rows, {**discount.identity.fields(), "step": discount.step}
    tensors: dict[str, NDArray[Any]] = {
        "0.ids": rows.ids,
        "0.offsets": rows.offsets,
        "0.amounts": discount.amounts,
    }
    return {**about, "table": discount.table.spec.name}, tensors


def _describe_write(command: WriteRows) -> _Described:
    write = command.write
    rows, about = write.rows, {**write.identity.fields(), "step": write.step}
    about |= {"only_if_new": write.only_if_new, "is_last": write.is_last}
    tensors: dict[str, NDArray[Any]] = {
        "0.ids": rows.ids,
        "0.offsets": rows.offsets,
        "0.values": write.values,
    }
    return {**about, "table": write.table.spec.name}, tensors


def _describe_push(command: Update | Contribute) -> _Described:
    push = command.push
    tensors: dict[str, NDArray[Any]] = {}
    parts = [
        {**_describe_part(index, part, "grads", tensors), "lr": part.lr, **_numbers_in(part)}
        for index, part in enumerate(push.parts)
    ]
    about = {**_describe_head(push), "first": push.first, "weight": push.weight}
    if push.norms is not None:
        tensors[NORMS] = push.norms
    return {**about, "parts": parts}, tensors | _progress_in(push)


def _describe_exchange(command: Exchange) -> _Described:
    exchange = command.exchange
    tensors: dict[str, NDArray[Any]] = {}
    parts = [
        {
            **_describe_part(index, part, "deltas", tensors),
            "ack": part.ack,
            "max_rows": part.max_rows,
            "lr": part.lr,
            "answer_wire": part.answer_wire,
            "quiet": part.quiet,
            "damping": part.damping,
            "guarded_steps": part.guarded_steps,
        }
        for index, part in enumerate(exchange.parts)
    ]
    return {**_describe_head(exchange), "parts": parts}, tensors | _progress_in(exchange)


def _numbers_in(part: PushPart) -> dict[str, Any]:
    """Return in which numbers a part's rule differs from its table's."""
    if part.rule is None:
        return {}
    declared = part.table.spec.optimizer.constants
    numbers = {k: each for k, each in part.rule.constants.items() if each != declared[k]}
    return {"numbers": numbers}


def _describe_head(change: PushRequest | ExchangeRequest) -> dict[str, Any]:
    return {
        **change.identity.fields(),
        "step": change.step,
        "continues": change.continues,
    }


def _progress_in(change: PushRequest | ExchangeRequest) -> dict[str, NDArray[Any]]:
    return {} if change.progress is None else {PROGRESS: change.progress}


def _describe_part(
    index: int, part: PushPart | ExchangePart, what: str, tensors: dict[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return what a part says of itself, and put its tensors beside those of the others."""
    content = part.content
    about: dict[str, Any] = {
        "table": part.table.spec.name,
        "wire": content.wire,
    }
    tensors[f"{index}.{what}"] = content.numbers.rows
    if content.numbers.scales is not None:
        tensors[f"{index}.scales"] = content.numbers.scales
    if isinstance(content, SparsePart):
        tensors |= {f"{index}.ids": content.ids, f"{index}.offsets": content.offsets}
        about["unique"] = content.unique
        if content.now:
            about["now"] = content.now
        if content.marks is not None:
            tensors[f"{index}.marks"] = content.marks
        return about
    if content.piece is not None:
        where, piece = content.where, content.piece
        about |= {"start": where.start, "stop": where.stop}
        about |= {"update": piece.first, "square": piece.square}
    if content.spans is not None:
        tensors[f"{index}.spans"] = np.array(content.spans, np.int64).reshape(-1, 2)
    if not content.is_update:
        about["only_sets"] = True
    if content.set_before is not None:
        tensors[f"{index}.set_at"] = content.set_before.places
        tensors[f"{index}.set_to"] = content.set_before.values
    return about


def _describe_void(command: Void) -> _Described:
    return command.identity.fields(), {}


def _describe_assign(command: Assign) -> _Described:
    assign = command.assign
    about: dict[str, Any] = {"rank": assign.rank, "incarnation": assign.incarnation}
    about |= {"table": assign.table.spec.name, "only_if_new": assign.only_if_new}
    if assign.places is not None:
        return about, {"set_at": assign.places, "set_to": assign.values}
    return about, {"rows": assign.values}


def _describe_member(command: Fence | Join | Lose) -> _Described:
    return {"rank": command.rank, "incarnation": command.incarnation}, {}


def _describe_from(command: Leave | Confirm | Retire) -> _Described:
    about = {"rank": command.rank, "incarnation": command.incarnation}
    return about | {"step": command.step}, {}


def _describe_limit(command: Limit) -> _Described:
    return {"max_staleness": command.max_staleness}, {}


def _describe_load(command: Load) -> _Described:
    described = [describe_table(table, index) for index, table in enumerate(command.tables)]
    tensors = {name: tensor for _, of_table in described for name, tensor in of_table.items()}
    return {"tables": [about for about, _ in described], **command.origin._asdict()}, tensors


def _describe_make(command: Make) -> _Described:
    return {"tables": [spec.to_wire() for spec in command.specs]}, {}


def _describe_announce(command: Announce) -> _Described:
    about = {"table": command.table.spec.name, "block": command.block, "rank": command.rank}
    return about | {"start": command.start, "stop": command.stop}, {}


def _describe_announced(command: Announced) -> _Described:
    if command.table is None:
        return {"rank": command.rank}, {}
    return {"rank": command.rank, "table": command.table.spec.name}, {}


def _read_create(message: Message, store: TableStore) -> Create:
    reader = PartIds(message)
    new = []
    for index, about in enumerate(Fields(message.fields, where="create").parts("parts")):
        table = _sparse(store, Fields(about, where=f"create part {index}"))
        new.append((table, reader.read(index, table, packed=False)))
    return Create(tuple(new))


def _read_announce(message: Message, store: TableStore) -> Announce:
    fields = Fields(message.fields, where="announce")
    table, block = _sparse(store, fields), fields.integer("block")
    if block >= len(table.blocks):
        rule = f"must be below {len(table.blocks)}: as many owners are here"
        raise MalformedMessageError(where="announce field 'block'", rule=rule)
    rank = fields.optional_integer("rank")
    start, stop = fields.integer("start"), fields.integer("stop")
    if not start <= stop <= start + ANNOUNCED_ROWS:
        rule = f"must be from start = {start} to {ANNOUNCED_ROWS} more"
        raise MalformedMessageError(where="announce field 'stop'", rule=rule)
    return Announce(table, block, start, stop, None if rank is None else Rank(rank))


def _read_announced(message: Message, store: TableStore) -> Announced:
    fields = Fields(message.fields, where="announced")
    rank = fields.optional_integer("rank")
    table = _sparse(store, fields) if "table" in message.fields else None
    return Announced(None if rank is None else Rank(rank), table)


def _sparse(store: TableStore, fields: Fields) -> SparseTable:
    table = store.find(fields.text("table"))
    if not isinstance(table, SparseTable):
        raise MalformedMessageError(where="field 'table'", rule="must name a sparse table")
    return table


def _read_member(
    message: Message, kind: type[Fence] | type[Join] | type[Lose]
) -> Fence | Join | Lose:
    fields = Fields(message.fields, where="command")
    return kind(Rank(fields.integer("rank")), fields.integer("incarnation"))


def _read_from(
    message: Message, kind: type[Leave] | type[Confirm] | type[Retire]
) -> Leave | Confirm | Retire:
    fields = Fields(message.fields, where="command")
    rank, incarnation = Rank(fields.integer("rank")), fields.integer("incarnation")
    return kind(rank, incarnation, Step(fields.integer("step")))


def _read_begin(message: Message, _store: TableStore) -> Begin:
    fields = Fields(message.fields, where="begin")
    return Begin(identity_of(fields), Step(fields.integer("step")))


def _read_limit(message: Message, _store: TableStore) -> Limit:
    return Limit(Fields(message.fields, where="limit").optional_integer("max_staleness"))


def _read_load(message: Message, store: TableStore) -> Load:
    fields = Fields(message.fields, where="load")
    tables = fields.parts("tables")
    wheres = [Fields(about, where=f"load table {i}") for i, about in enumerate(tables)]
    specs = [spec_of(about.map("spec")) for about in wheres]
    store.check(specs)
    store.check_limits(specs, anew=True)
    return Load(
        tuple(
            read_table(message, about, i, store.build(spec))
            for i, (about, spec) in enumerate(zip(wheres, specs, strict=True))
        ),
        Origin(fields.text("folder"), fields.text("digest")),
    )


def _read_make(message: Message, _store: TableStore) -> Make:
    tables = Fields(message.fields, where="make").parts("tables")
    return Make(tuple(spec_of(wire) for wire in tables))


_KINDS: Mapping[type, str] = {
    Create: "create",
    Remove: "remove",
    Discount: "discount",
    WriteRows: "write",
    Update: "update",
    Contribute: "contribute",
    Exchange: "exchange",
    Void: "void",
    Assign: "assign",
    Begin: "begin",
    BeginTerm: "begin_term",
    Fence: "fence",
    Join: "join",
    Leave: "leave",
    Confirm: "confirm",
    Retire: "retire",
    Lose: "lose",
    Limit: "limit",
    Load: "load",
    Make: "make",
    Announce: "announce",
    Announced: "announced",
    Prepare: "prepare_pass",
    CommitPass: "commit_pass",
    AbortPass: "abort_pass",
}

_DESCRIBED: Mapping[type, Callable[[Any], _Described]] = {
    Create: _describe_create,
    Remove: _describe_remove,
    Discount: _describe_discount,
    WriteRows: _describe_write,
    Update: _describe_push,
    Contribute: _describe_push,
    Exchange: _describe_exchange,
    Void: _describe_void,
    Assign: _describe_assign,
    Begin: lambda command: ({**command.identity.fields(), "step": command.step}, {}),
    BeginTerm: lambda command: ({"term": command.term}, {}),
    Fence: _describe_member,
    Join: _describe_member,
    Leave: _describe_from,
    Confirm: _describe_from,
    Retire: _describe_from,
    Lose: _describe_member,
    Limit: _describe_limit,
    Load: _describe_load,
    Make: _describe_make,
    Announce: _describe_announce,
    Announced: _describe_announced,
    Prepare: describe_prepare,
    CommitPass: describe_commit,
    AbortPass: describe_abort,
}

_READERS: Mapping[str, Callable[[Message, TableStore], Command]] = {
    "create": _read_create,
    "remove": lambda message, store: Remove(remove_request(message, store)),
    "discount": lambda message, store: Discount(discount_request(message, store)),
    "write": lambda message, store: WriteRows(write_request(message, store)),
    "update": lambda message, store: Update(push_request(message, store, pieces=True)),
    "contribute": lambda message, store: Contribute(push_request(message, store)),
    "exchange": lambda message, store: Exchange(exchange_request(message, store)),
    "void": lambda message, _: Void(identity_of(Fields(message.fields, where="void"))),
    "assign": lambda message, store: Assign(assign_request(message, store)),
    "begin": _read_begin,
    "begin_term": lambda message, _: BeginTerm(
        Fields(message.fields, where="begin_term").integer("term", least=1)
    ),
    "fence": lambda message, _: _read_member(message, Fence),
    "join": lambda message, _: _read_member(message, Join),
    "leave": lambda message, _: _read_from(message, Leave),
    "confirm": lambda message, _: _read_from(message, Confirm),
    "retire": lambda message, _: _read_from(message, Retire),
    "lose": lambda message, _: _read_member(message, Lose),
    "limit": _read_limit,
    "load": _read_load,
    "make": _read_make,
    "announce": _read_announce,
    "announced": _read_announced,
    "prepare_pass": read_prepare,
    "commit_pass": lambda message, _: read_commit(message),
    "abort_pass": lambda message, _: read_abort(message),
}
