"""The changes of one run of a job, asked of all its pservers.

A feed begins at one placement, and ends when a pserver has lost what it kept: by a restart, a
move, a load of a checkpoint. Then another one begins, with all rows.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_serving.jobs.assembling import (
    Assembly,
    DenseVectors,
    check_same_tables,
    read_rows,
)
from paramfleet_shared.deltas.records import Change
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.secret import secret_of
from paramfleet_shared.net.tls import tls_of
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["JobFeed", "Rows"]

CALL_TIMEOUT_S = 5.0
"""Seconds of one question: a pserver answers within milliseconds, or is looked for anew."""

PLACES = 1 << 15
"""Of rows that one question reads, at the beginning."""

MOST_PLACES = 1 << 40
"""Of one block: an answer that says more is none."""


class Rows(NamedTuple):
    """Some rows of a table."""

    table: str
    ids: NDArray[np.int64]
    """[n]"""
    rows: NDArray[np.float32]
    """[n, D]"""


class _Server:
    """One pserver, as its reader knows it."""

    def __init__(self, channel: Channel, address: list[int]) -> None:
        self.channel = channel
        self.address = address
        self.feed = 0
        self.have = 0
        self.marks: dict[str, int] = {}
        self.places: dict[str, list[int]] = {}
        """Of dense tables that came in part: the mark of that, and the next place."""
        self.blocks: dict[str, int] = {}
        self.has_ended = False


class JobFeed:
    """One feed. Used from one event loop.

    Args:
        placement: Of the job's run.
        reader: A name that no other reader of the job has.
        settings: Of the job: its secret or certificates.
        clock: Time.
    """

    def __init__(
        self, placement: Placement, *, reader: str, settings: JobSettings, clock: Clock
    ) -> None:
        self.placement = placement
        self._reader = reader
        self._timeout_s = min(CALL_TIMEOUT_S, settings.call_timeout_s)
        tls = tls_of(settings, "serving")
        self._servers = [
            _Server(
                Channel(
                    endpoint,
                    peer=f"pserver {server}",
                    clock=clock,
                    tls=tls and tls.expects("pserver"),
                    secret=secret_of(settings),
                ),
                [server, placement.term_of(server)],
            )
            for server, endpoint in enumerate(placement.endpoints)
        ]
        self.specs: Mapping[str, TableSpec] = {}
        self._dense = DenseVectors(())
        self._assembly = Assembly({}, self._dense)

    @property
    def has_ended(self) -> bool:
        """Return whether the training has ended, and all its changes were answered."""
        return all(server.has_ended for server in self._servers)

    async def begin(self) -> tuple[TableSpec, ...]:
        """Have all pservers keep what changes from now on; return the job's tables.

        Raises:
            TablesDifferError: if pservers describe them differently.
            FleetError: why a pserver doesn't.
        """
        tables = await asyncio.gather(*map(self._begin, self._servers))
        specs = check_same_tables(tables)
        self.specs = {spec.name: spec for spec in specs}
        self._dense = DenseVectors([spec for spec in specs if spec.kind == "dense"])
        self._assembly = Assembly(self.specs, self._dense)
        return specs

    async def rows(self) -> AsyncIterator[Rows]:
        """Yield all rows as they are, each once unless it comes anew meanwhile.

        Raises:
            FleetError: why a pserver doesn't answer.
        """
        for server in self._servers:
            for name, blocks in server.blocks.items():
                for block in range(blocks):
                    async for ids, rows in self._rows_of(server, name, block):
                        yield Rows(name, ids, rows)

    async def _rows_of(
        self, server: _Server, table: str, block: int
    ) -> AsyncIterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield the rows of one block, some places at a time.

        Raises:
            MalformedMessageError: if an answer is none.
            FleetError: why the pserver doesn't answer.
        """
        start, places = 0, 1
        while start < places:
            fields = {"table": table, "block": block, "start": start, "count": PLACES}
            answer = await self._ask(server, "feed_rows", fields)
            found, stop = answer.fields.get("places"), answer.fields.get("next")
            if type(found) is not int or not 0 <= found <= MOST_PLACES:
                rule = "must be a number of places"
                raise MalformedMessageError(where="field 'places'", rule=rule)
            if type(stop) is not int or not start < stop <= start + PLACES:
                rule = "must be behind the first place"
                raise MalformedMessageError(where="field 'next'", rule=rule)
            yield read_rows(answer.tensors, "", self.specs[table].dim)
            start, places = stop, found

    async def changes(self, *, dense: bool) -> Change:
        """Return what changed since the last time; after an error what came is in the next.

        A pserver that has given its last answer may be gone, and isn't asked.

        Args:
            dense: Whether dense tables are asked for, too.

        Raises:
            FleetError: why a pserver doesn't answer.
        """
        moment = datetime.now(UTC).timestamp()
        work = partial(self._read_changes, dense=dense)
        training = [server for server in self._servers if not server.has_ended]
        results = await asyncio.gather(*map(work, training), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        change = self._assembly.change(moment)
        self._assembly = Assembly(self.specs, self._dense)
        return change

    async def keep(self) -> None:
        """Have all pservers keep on what changes, while other things are read.

        Raises:
            FleetError: why a pserver doesn't.
        """
        await asyncio.gather(*(self._ask(each, "feed_keep", {}) for each in self._servers))

    async def close(self) -> None:
        """Let the pservers keep nothing for this reader, and close the connections."""
        here = [server for server in self._servers if not server.has_ended]
        ends = (self._ask(server, "feed_end", {}, timeout_s=1.0) for server in here)
        await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.gather(*(server.channel.close() for server in self._servers))

    async def _begin(self, server: _Server) -> Sequence[TableSpec]:
        answer = await self._ask(server, "feed_begin", {})
        feed, tables = answer.fields.get("feed"), answer.fields.get("tables")
        if type(feed) is not int or type(tables) is not list:
            raise MalformedMessageError(where="answer to 'feed_begin'", rule="must be whole")
        specs = []
        for each in tables:
            blocks = each.get("blocks") if type(each) is dict else None
            if type(blocks) is not int:
                raise MalformedMessageError(where="field 'tables'", rule="must say blocks")
            spec = TableSpec.from_wire(each.get("spec", {}))
            specs.append(spec)
            if spec.kind == "sparse":
                server.blocks[spec.name] = blocks
        server.feed = feed
        return specs

    async def _read_changes(self, server: _Server, *, dense: bool) -> None:
        """Read what had changed on one pserver when this began; more may come with it.

        Raises:
            MalformedMessageError: if an answer is none.
            FleetError: why it doesn't answer.
        """
        left: int | None = None
        while left is None or left > 0 or server.places:
            fields = {
                "have": server.have,
                "begins": not left,
                "dense": server.marks,
                "with_dense": dense or bool(server.places),
                "dense_at": server.places,
            }
            answer = await self._ask(server, "feed_changes", fields)
            number, left = answer.fields.get("number"), answer.fields.get("left")
            if type(number) is not int or type(left) is not int:
                rule = "must be numbers"
                raise MalformedMessageError(where="fields 'number' and 'left'", rule=rule)
            taken = self._assembly.take(answer)
            server.marks = {**server.marks, **taken.marks}
            rest = {n: each for n, each in server.places.items() if n not in taken.marks}
            server.places = {**rest, **taken.places}
            server.have, dense = number, False
            server.has_ended = answer.fields.get("last") is True
        if server.has_ended:
            with suppress(FleetError):  # it has ended, or does by itself
                await self._ask(server, "feed_end", {}, timeout_s=1.0)

    async def _ask(
        self,
        server: _Server,
        operation: str,
        fields: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
    ) -> Message:
        about = {"reader": self._reader, "feed": server.feed, **fields}
        if server.address[1]:
            about["for_server"] = server.address
        return await server.channel.call(
            operation, Message(fields=about), timeout_s=timeout_s or self._timeout_s
        )
