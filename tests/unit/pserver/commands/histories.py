"""Histories of what workers do, and machines that execute them."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np

from paramfleet_pserver.commands.applying import StepApplier
from paramfleet_pserver.commands.codec import command_of, to_bytes
from paramfleet_pserver.commands.geo import GeoExchange
from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.modes import ServerMode
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import (
    Command,
    Fence,
    Join,
    Leave,
    Limit,
    Lose,
)
from paramfleet_pserver.commands.snapshot.reading import restore
from paramfleet_pserver.commands.snapshot.writing import snapshot_of
from paramfleet_pserver.commands.terms import Terms
from paramfleet_pserver.core.passes import PassBook
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables.blocks import NewShard, in_memory
from paramfleet_pserver.tables.columns import states_shape, values_shape
from paramfleet_pserver.tables.old_values import OldRows
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import Message, decode, encode
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.tables.encoding import WireDtype, encode_rows
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.spec import EntrySpec, OptimizerSpec, TableSpec, Tracks
from paramfleet_shared.values.ids import Rank, Step

SHARDS, DIM, SIZE, NUM_WORKERS, MOST_ROWS = 8, 3, 11, 3, 1 << 20
WIRES: tuple[WireDtype, ...] = ("float32", "float16", "bfloat16", "int8", "float8_e4m3")
MODES: tuple[Mode, ...] = ("sync", "async", "geo", "localsgd", "gpubox")
RULE_NAMES = sorted(RULES.keys() - {"sum"})
ENTRIES = {
    "ctr": EntrySpec(kind="count_filter", value=2),
    "adagrad": EntrySpec(kind="count_filter", value=3),
    "adam": EntrySpec(kind="probability", value=0.5),
    "sgd": EntrySpec(max_rows=16),
    "ftrl": EntrySpec(kind="count_filter", value=2, max_rows=24),
}
"""By rule, of the table "rows"."""
EXAMPLES = int(read_environment().get("REPLAY_EXAMPLES", "100"))


@dataclass
class Deed:
    """What a worker does, before it has a name and numbers."""

    kind: str
    rank: int
    step: int
    ids: list[int]
    seed: int
    wire: WireDtype
    tables: list[str]
    ahead: int
    """By how much its sequence is after the worker's former change: 0 if it is that again."""
    continues: bool
    damping: float
    guarded: bool


def deeds(*, least: int = 1) -> st.SearchStrategy[list[Deed]]:
    kinds = ["change"] * 8 + ["create", "assign", "leave", "lose", "fence", "limit", "join"]
    kinds += ["remove"] * 2 + ["discount"] * 2 + ["void"] + ["commit"] * 3 + ["abort"]
    kinds += ["write"] * 3
    deed = st.builds(
        Deed,
        kind=st.sampled_from(kinds),
        rank=st.integers(0, NUM_WORKERS - 1),
        step=st.integers(0, 6),
        ids=st.lists(st.integers(0, 60), min_size=0, max_size=20),
        seed=st.integers(0, 1000),
        wire=st.sampled_from(WIRES),
        tables=st.lists(
            st.sampled_from(["rows", "half", "flat"]), min_size=0, max_size=3, unique=True
        ),
        ahead=st.sampled_from([0, 1, 1, 1, 2, -1]),
        continues=st.booleans(),
        damping=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        guarded=st.booleans(),
    )
    return st.lists(deed, min_size=least, max_size=25)


class History:
    """Makes commands of deeds, as a server does of requests."""

    def __init__(self, mode: Mode, store: TableStore) -> None:
        self._mode = mode
        self._store = store
        self._sequences: dict[tuple[int, int], int] = {}
        self._incarnations = dict.fromkeys(range(NUM_WORKERS), 1)
        self.book: PassBook[Any] = PassBook()

    def command(self, deed: Deed) -> Command:
        rank, incarnation = Rank(deed.rank), self._incarnations[deed.rank]
        if deed.kind in {"lose", "fence"}:
            self._incarnations[deed.rank] += 1
        plain: dict[str, Command] = {
            "leave": Leave(rank, incarnation, Step(deed.step)),
            "lose": Lose(rank, incarnation),
            "fence": Fence(rank, incarnation + 1),
            "join": Join(rank, incarnation),
            "limit": Limit(deed.step if deed.continues else None),
        }
        if deed.kind in plain:
            return plain[deed.kind]
        made = {"create": self._create, "assign": self._assign, "change": self._change}
        made |= {"remove": self._remove, "void": self._void, "discount": self._discount}
        made |= {"write": self._write}
        made |= {"commit": self._end_pass, "abort": self._end_pass}
        return command_of(made[deed.kind](deed), self._store)

    def _create(self, deed: Deed) -> Message:
        routed = route(np.array(deed.ids, np.int64), SHARDS)
        tensors = {"0.ids": routed.ids, "0.offsets": routed.offsets}
        return Message(fields={"kind": "create", "parts": [{"table": "half"}]}, tensors=tensors)

    def _remove(self, deed: Deed) -> Message:
        routed = route(np.array(deed.ids, np.int64), SHARDS)
        tensors = {"0.ids": routed.ids, "0.offsets": routed.offsets}
        table = "rows" if "rows" in deed.tables else "half"
        fields = {"kind": "remove", **self._name(deed), "step": deed.step, "table": table}
        return Message(fields=fields, tensors=tensors)

    def _discount(self, deed: Deed) -> Message:
        if not self._store.find("rows").spec.optimizer.num_counts:
            return self._remove(deed)
        routed = route(np.unique(np.array(deed.ids, np.int64)), SHARDS)
        amounts = np.random.default_rng(deed.seed).random(len(routed.ids)).astype(np.float32)
        tensors: dict[str, Any] = {"0.ids": routed.ids, "0.offsets": routed.offsets}
        fields = {"kind": "discount", **self._name(deed), "step": deed.step, "table": "rows"}
        return Message(fields=fields, tensors=tensors | {"0.amounts": amounts})

    def _write(self, deed: Deed) -> Message:
        table = "rows" if "rows" in deed.tables else "half"
        if self._store.find(table).spec.optimizer.num_counts:
            table = "half"
        routed = route(np.unique(np.array(deed.ids, np.int64)), SHARDS)
        values = np.random.default_rng(deed.seed).normal(size=(len(routed.ids), DIM))
        fields = {"kind": "write", **self._name(deed), "step": deed.step, "table": table}
        fields |= {"only_if_new": deed.continues, "is_last": deed.guarded and deed.continues}
        tensors: dict[str, Any] = {"0.ids": routed.ids, "0.offsets": routed.offsets}
        tensors["0.values"] = values.astype(np.float32)
        return Message(fields=fields, tensors=tensors)

    def _assign(self, deed: Deed) -> Message:
        values = np.random.default_rng(deed.seed).normal(size=SIZE).astype(np.float32)
        about: dict[str, Any] = {"rank": deed.rank}
        about["incarnation"] = self._incarnations[deed.rank]
        about |= {"kind": "assign", "table": "flat", "only_if_new": deed.continues}
        if deed.guarded:
            places = np.arange(1, SIZE, 3)
            return Message(fields=about, tensors={"set_at": places, "set_to": values[places]})
        return Message(fields=about, tensors={"rows": values})

    def _name(self, deed: Deed) -> dict[str, Any]:
        """Return the header's part of a change: again, the next one, or out of order."""
        key = deed.rank, self._incarnations[deed.rank]
        self._sequences[key] = max(1, self._sequences.get(key, 0) + deed.ahead)
        return ChangeIdentity(*key, self._sequences[key]).fields()

    def _void(self, deed: Deed) -> Message:
        return Message(fields={"kind": "void", **self._name(deed)})

    def _pass(self, deed: Deed) -> dict[str, Any]:
        """Return the header's part of what is done about a pass, mostly the next one."""
        name = {"rank": deed.rank, "incarnation": self._incarnations[deed.rank]}
        return name | {"pass": max(1, self.book.committed + max(1, deed.ahead))}

    def _end_pass(self, deed: Deed) -> Message:
        held = [[each.rank, each.pieces] for each in self.book.held()]
        if deed.guarded:
            held = [[deed.rank, 1 + deed.step]]
        pieces = None if deed.continues else held or [[0, 1]]
        kind = f"{deed.kind}_pass"
        return Message(fields={"kind": kind, **self._pass(deed), "pieces": pieces})

    def _prepare(self, deed: Deed) -> Message:
        random = np.random.default_rng(deed.seed)
        tensors: dict[str, Any] = {}
        routed = route(np.array(deed.ids, np.int64), SHARDS)
        parts: list[dict[str, Any]] = []
        for index, name in enumerate(deed.tables):
            table, num = self._store.find(name), len(deed.ids)
            writes = max(0, table.writes - (deed.step == 6))
            about: dict[str, Any] = {"table": name, "writes": writes}
            about |= {"updates": table.num_updates + deed.seed % 3, "stepped": deed.guarded}
            if name == "flat":
                num = SIZE // 2
                about |= {"start": 1, "stop": 1 + num}
                about["missed"] = [[2, 5, 1 + deed.seed]] if deed.seed % 2 else []
            else:
                tensors |= {f"{index}.ids": routed.ids, f"{index}.offsets": routed.offsets}
            shapes = {"values": values_shape(table, num), "states": states_shape(table, num)}
            for what, shape in shapes.items():
                numbers = random.normal(size=shape).astype(np.float32)
                tensors[f"{index}.{what}"] = numbers
            parts.append(about)
        piece = deed.step % 2
        pieces = piece + 1 if deed.guarded else None
        fields = {"kind": "prepare_pass", **self._pass(deed), "piece": piece, "pieces": pieces}
        return Message(fields={**fields, "parts": parts}, tensors=tensors)

    def _change(self, deed: Deed) -> Message:
        if self._mode == "gpubox":
            return self._prepare(deed)
        exchanges = self._mode in {"geo", "localsgd"}
        kind = "exchange" if exchanges else "contribute" if self._mode == "sync" else "update"
        random, tensors = np.random.default_rng(deed.seed), {}
        ids = np.unique(np.array(deed.ids, np.int64)) if deed.guarded else np.array(deed.ids)
        routed = route(ids.astype(np.int64), SHARDS)
        parts: list[dict[str, Any]] = []
        name = self._name(deed)
        for index, table in enumerate(deed.tables):
            about: dict[str, Any] = {"table": table}
            if table == "half":
                about["now"] = deed.step
            shape = (SIZE,) if table == "flat" else (len(ids), DIM)
            if table == "flat" and deed.ahead and self._mode != "sync" and deed.guarded:
                shape = (SIZE // 2,)
                about |= {"start": 0, "stop": SIZE // 2, "square": 1.5}
                about["update"] = name["sequence"]
            pushed = random.normal(size=shape).astype(np.float32)
            if table == "rows" and self._store.find(table).spec.optimizer.num_counts:
                pushed[:, :2] = 1 + np.abs(pushed[:, :2])  # shows and clicks
            numbers = encode_rows(pushed, deed.wire)
            tensors[f"{index}.{'deltas' if exchanges else 'grads'}"] = numbers.rows
            if numbers.scales is not None:
                tensors[f"{index}.scales"] = numbers.scales
            if table != "flat":
                tensors |= {f"{index}.ids": routed.ids, f"{index}.offsets": routed.offsets}
                about["unique"] = deed.guarded
                if self._mode == "geo" and self._store.find(table).spec.creates_at_push:
                    marks = random.choice([0, 0, 1, 2, 255], len(ids)).astype(np.uint8)
                    tensors[f"{index}.marks"] = marks
            if not exchanges:
                about |= self._of_push(deed, table, tensors, index)
            about |= {"lr": 0.1, "wire": deed.wire, "ack": deed.step, "max_rows": MOST_ROWS}
            about |= {"damping": deed.damping, "guarded_steps": float(deed.guarded)}
            parts.append(about)
        fields = {"kind": kind, **name, "step": deed.step, "weight": 1.0 + deed.step}
        fields |= {"parts": parts, "continues": deed.continues}
        tensors["progress"] = np.frombuffer(b"state %d" % deed.seed, np.uint8)
        return Message(fields=fields, tensors=tensors)

    def _of_push(
        self, deed: Deed, table: str, tensors: dict[str, Any], index: int
    ) -> dict[str, Any]:
        """Return what a push says of a part beside its gradients, of some of them."""
        random, about = np.random.default_rng([deed.seed, index]), dict[str, Any]()
        constants = self._store.find(table).spec.optimizer.constants
        if "beta1" in constants and random.random() < 0.3:
            about["numbers"] = {"beta1": 0.25 + 0.5 * float(random.random())}
        if table != "flat":
            return about
        if deed.seed % 3 == 0:
            stop = SIZE // 2
            spans = [[], [[0, 2]], [[1, 2], [3, stop]]][deed.seed % 9 // 3]
            tensors[f"{index}.spans"] = np.array(spans, np.int64).reshape(-1, 2)
            about["only_sets"] = not spans and deed.continues
        if deed.seed % 4 == 0:
            places = np.flatnonzero(random.random(SIZE) < 0.4).astype(np.int64)
            tensors[f"{index}.set_at"] = places
            tensors[f"{index}.set_to"] = random.normal(size=len(places)).astype(np.float32)
        return about


class Replica:
    """A machine with its tables and owners."""

    def __init__(
        self,
        mode: Mode,
        num_owners: int,
        *,
        rate: str,
        elastic: bool,
        returning: bool = False,
        new_shard: NewShard = in_memory,
    ) -> None:
        self.owners = Owners(num_owners)
        self.store = store_for(num_owners, new_shard)
        terms = Terms(
            mode=mode,
            worker_num=NUM_WORKERS,
            max_staleness=2,
            async_rate=cast("Any", rate),
            sync_batch_norm=False,
        )
        self.machine = Machine(
            terms,
            elastic=elastic,
            returning=returning,
            store=self.store,
            owners=self.owners,
        )

    @classmethod
    async def restored(
        cls,
        snapshot: Sequence[bytes],
        num_owners: int = 2,
        new_shard: NewShard = in_memory,
    ) -> "Replica":
        """Return what a snapshot makes."""
        replica = cls.__new__(cls)
        replica.owners, replica.store = Owners(num_owners), store_for(num_owners, new_shard)
        messages = (decode(bytearray(body)) for body in snapshot)
        replica.machine = await restore(messages, replica.store, replica.owners)
        return replica

    async def snapshot(self) -> list[bytes]:
        """Return its state, in pieces so small that there are several."""
        await self.settle()
        messages = snapshot_of(self.machine, piece_bytes=256)
        return [b"".join(encode(message)) for message in messages]

    async def execute(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.machine.execute(command)
        await self.settle()

    async def settle(self) -> None:
        mode = self.machine.mode
        await self.owners.settle()
        while isinstance(mode, StepApplier) and mode.is_applying:
            await self.owners.settle()

    async def digest(self, *, same_owners: bool) -> str:
        await self.settle()
        sha = hashlib.sha256()
        for piece in state_of(self.machine, same_owners=same_owners):
            sha.update(piece if isinstance(piece, bytes) else repr(piece).encode())
        return sha.hexdigest()


def store_for(num_owners: int, new_shard: NewShard = in_memory) -> TableStore:
    return TableStore(
        shards=range(SHARDS), num_shards=SHARDS, num_owners=num_owners, new_shard=new_shard
    )


def specs_of(mode: Mode, storage: str, rule: str) -> tuple[TableSpec, ...]:
    adds_up = mode in {"geo", "localsgd"}
    counts = rule == "ctr" and mode == "geo"
    sparse = OptimizerSpec(rule="sum" if adds_up and not counts else cast("Any", rule))
    plain = "sgd" if rule == "ctr" else rule  # an accessor's rows are float32, never dense
    dense = OptimizerSpec(rule="sum" if mode == "geo" else cast("Any", plain))
    tracks: Tracks = "step" if mode in {"sync", "async", "geo"} else "none"
    half = OptimizerSpec(rule="sum" if adds_up else cast("Any", plain), tracks=tracks)
    entry = EntrySpec()
    if mode in {"sync", "async", "geo"}:
        entry = ENTRIES.get(rule, EntrySpec())
    return (
        TableSpec(
            name="rows",
            kind="sparse",
            dim=DIM,
            optimizer=sparse,
            num_shards=SHARDS,
            entry=entry,
        ),
        TableSpec(
            name="half",
            kind="sparse",
            dim=DIM,
            optimizer=half,
            num_shards=SHARDS,
            storage=cast("Any", storage),
            rounding="stochastic" if storage != "float32" else "nearest",
        ),
        TableSpec(name="flat", kind="dense", size=SIZE, optimizer=dense, num_shards=SHARDS),
    )


def state_of(machine: Machine, *, same_owners: bool) -> Iterator[Any]:
    """Yield all that decides what becomes of later commands, rows sorted by id.

    What is kept by block is left out where the other machine has other blocks.
    """
    for table in sorted(machine.store, key=lambda table: table.spec.name):
        yield table.spec.name, table.version, table.num_updates, table.is_loaded
        yield table.is_assigned, table.writes, table.last_write, table.num_pushes
        if isinstance(table, DenseTable):
            dense = table.range
            yield dense.values.tobytes() + dense.states.tobytes()
            yield dense.is_untouched, sorted(vars(table.guards[0]).items())
            yield sorted(table._updates.items())
            yield table.missed.counts()
        elif isinstance(table, SparseTable):
            yield from _rows_of(table)
            yield sorted(
                (shard, each.num_counted, each.pages.tolist(), each.counters.tobytes())
                for block in table.blocks
                if block.rows.admission is not None
                for shard, each in block.rows.admission.sketches().items()
            )
            if same_owners:
                for block in table.blocks:
                    *places, num_turns, num_pushes = block.rows.places()
                    yield b"".join(each.tobytes() for each in places)
                    yield num_turns, num_pushes
                yield [sorted(vars(guard).items()) for guard in table.guards]
    yield sorted(machine.identities.incarnations().items())
    yield sorted(machine.identities.taken())
    yield sorted((each.identity, each.num_rows) for each in machine.removals.values())
    yield sorted(machine.gate.committed().items()), machine.max_staleness
    yield sorted(machine.gate.ahead())
    yield sorted(machine.lives.items()), machine.num_members, sorted(machine.left.items())
    yield machine.is_returning, machine.states.all(), machine.origin
    yield from _kept_by(machine.mode)
    if isinstance(machine.mode, GeoExchange):
        yield from _news_of(machine.mode, same_owners=same_owners)


def _rows(old: OldRows) -> Iterator[tuple[int, bytes]]:
    """Yield rows without their block, which is another one with other owners."""
    for row, values in zip(old.ids.tolist(), old.values, strict=True):
        yield row, values.tobytes()


def _old_of(mode: StepApplier) -> Iterator[Any]:
    """Yield what the latest steps have changed, as it was before."""
    for before in [] if mode.old is None else mode.old.steps():
        yield before.step
        for key in sorted(before.ranges):
            yield key, before.ranges[key].tobytes()
        for table in sorted({table for table, _ in before.rows}):
            olds = [old for key, old in before.rows.items() if key[0] == table]
            yield table, sorted(row for old in olds for row in _rows(old))


def _kept_by(mode: ServerMode) -> Iterator[Any]:
    """Yield what is kept of steps and passes that aren't whole."""
    if isinstance(mode, StepApplier):
        yield from _old_of(mode)
        reservoir = mode.reservoir
        yield mode.version, reservoir.next_step, reservoir.missing()
        yield sorted(reservoir._members._left_at.items())
        for step, pushed in sorted(reservoir._pushed.items()):
            for rank, (weight, kept) in sorted(pushed.items()):
                yield step, rank, weight
                for part in kept.parts:
                    yield part.content.numbers.rows.tobytes()
                    yield part.rule, getattr(part.content, "spans", None)
    if isinstance(mode, PassMode):
        book = mode.book
        yield book.committed, book.state
        for held in book.held():
            yield tuple(held)
            for _, own in sorted(book._prepared[held.rank].contents.items()):
                for written in own.parts:
                    yield sorted(written.fields().items())
                    yield b"".join(each.tobytes() for each in written.tensors().values())


def _rows_of(table: SparseTable) -> Iterator[Any]:
    exported = [block.rows.export(0, block.rows.num_places) for block in table.blocks]
    ids, values, states = (np.concatenate(each) for each in zip(*exported, strict=True))
    order = np.argsort(ids)
    yield [sum(block.rows.num_rows for block in table.blocks)]
    yield ids[order].tobytes() + values[order].tobytes() + states[order].tobytes()


def _news_of(geo: GeoExchange, *, same_owners: bool) -> Iterator[Any]:
    """Yield what each worker has still to hear of, and who has changed rows lately."""
    yield sorted(geo.ranks), sorted(geo.unannounced), geo.term
    for name, blocks in sorted(geo._recorders.items()):
        waiting: dict[Any, Any] = {}
        for block, recorder, sharers, guard in blocks:
            ids = block.rows.ids()
            assert recorder.term == geo.term
            if same_owners:
                yield sorted(vars(guard).items())
            for rank, worker in recorder._workers.items():
                rows = worker.queue[worker.first : worker.end]
                about = waiting.setdefault(rank, (worker.batch, [], {}))
                assert about[0] == worker.batch
                about[1].extend(
                    zip(ids[rows].tolist(), worker.marks[rows].tolist(), strict=True)
                )
                for batch, end in worker.sent.items():
                    held = ids[worker.queue[worker.first : max(worker.first, end)]].tolist()
                    about[2].setdefault(batch, []).extend(held)
            for rank, of in sharers._workers.items():
                changed = np.flatnonzero(of.periods)
                seen = zip(
                    ids[changed].tolist(),
                    of.periods[changed].tolist(),
                    of.changes[changed].tolist(),
                    strict=True,
                )
                waiting.setdefault(("sharers", rank), []).extend(seen)
                if same_owners:
                    yield rank, of.step, of.ending, of.period
        for key, about in sorted(waiting.items(), key=repr):
            if isinstance(about, list):
                yield name, key, sorted(about)
            else:
                batch, rows, sent = about
                batches = sorted((number, sorted(held)) for number, held in sent.items())
                yield name, key, batch, rows if same_owners else sorted(rows), batches


def announce(machine: Machine, command: Command) -> list[bytes]:
    """Let a worker that has joined hear of all rows; return the commands that do."""
    if not isinstance(command, Join):
        return []
    news = list(machine.mode.news_of_all(command.rank))
    for announce in news:
        machine.execute(announce)
    return [to_bytes(announce) for announce in news]
