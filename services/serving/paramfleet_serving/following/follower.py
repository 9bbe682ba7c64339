"""The task that keeps what is served as new as its source.

It alone changes what is served. Changes are applied to the served model in parts, between
lookups; a base is made a model beside it, gets the changes that are known, and then takes its
place.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paramfleet_serving.following.source import BaseOpened, Changed, Event, Moment, Source
from paramfleet_serving.measures import Measures
from paramfleet_serving.store.merging import merged_model
from paramfleet_serving.store.model import Model, Version
from paramfleet_shared.deltas.records import NumberedChange, StreamTable
from paramfleet_shared.errors import FleetError, error_to_wire
from paramfleet_shared.errors.serving import (
    NoVersionError,
    NumberNotKeptError,
    OtherTablesError,
)
from paramfleet_shared.net.rpc.connection.limits import Repeats
from paramfleet_shared.system.clock import Clock

__all__ = ["FollowRules", "Follower"]

log = logging.getLogger(__name__)

_REPEAT_S = 10.0
"""Seconds between two log lines that say the same."""

_MOST_RETRIES = 32.0
"""How many times ``retry_s`` the longest wait is."""

_VIEW_POLL_S = 0.001
"""Seconds between two looks at whether lookups of an older version have ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowRules:
    """How a follower follows."""

    memory_bytes: int
    """Memory of changed rows, at which a newer base is taken, or one is made."""

    cache_dir: Path
    """Where bases of its own are made."""

    accept_other_tables: bool = False
    """Whether a base may have other tables than what is served."""

    retry_s: float = 1.0
    """Seconds until the source is asked again after an error; longer after several."""


@final
class Follower:
    """Follows one source; ``run`` is its life.

    Args:
        source: Where changes come from.
        rules: How.
        clock: Time.
        measures: What it counts.
    """

    def __init__(
        self, source: Source, *, rules: FollowRules, clock: Clock, measures: Measures
    ) -> None:
        self.source = source
        self._rules = rules
        self._clock = clock
        self._measures = measures
        self._repeats = Repeats(_REPEAT_S)
        self.trouble: dict[str, object] | None = None
        """What is wrong with what comes, as ``error_to_wire``; None since all is well."""
        self.pinned: int | None = None
        """The number that a rollback asked for, which is served until ``follow``."""
        self._served: Model | None = None
        self._beside: Model | None = None
        """What is to be served instead, once it is whole."""
        self._gone: list[Model] = []
        """What was served, to be released on another thread: that can take long."""
        self._until = 0
        """The number at which it is."""
        self._wait_s = rules.retry_s
        """Until the source is asked again."""
        self._turn = asyncio.Lock()
        """Held by who changes what is served."""
        self._may_follow = asyncio.Event()
        self._may_follow.set()
        self._following: asyncio.Task[None] | None = None
        self._times_to_follow = 0
        """How often ``follow`` was asked for."""

    @property
    def served(self) -> Model:
        """Return what is served.

        Raises:
            NoVersionError: if nothing is as yet.
        """
        if self._served is None:
            reason = f"waiting for a stream in {self.source.name}"
            if self.trouble is not None:
                reason = str(self.trouble["message"])
            raise NoVersionError(reason=reason)
        return self._served

    async def run(self) -> None:
        """Follow, without an end; errors are noted, and the source is asked again.

        Raises:
            CancelledError: if it is cancelled.
        """
        while True:
            await self._may_follow.wait()
            following = asyncio.get_running_loop().create_task(self._follow())
            self._following = following
            try:
                await asyncio.wait((following,))
            except asyncio.CancelledError:  # of this task: what it began ends with it
                following.cancel()
                await asyncio.wait((following,))
                raise
            try:
                following.result()
            except asyncio.CancelledError:  # by a rollback
                continue
            except Exception as error:  # noqa: BLE001 - whatever a stream does, lookups go on
                self._note(error)
                if self._served is None and self._beside and not self._beside.is_half:
                    self._swap(self._beside)  # whole as far as it goes
                await self._clock.sleep(self._wait_s)
                self._wait_s = min(2 * self._wait_s, _MOST_RETRIES * self._rules.retry_s)

    async def roll_back(self, number: int, stream: str | None = None) -> Version:
        """Serve a former version, and stay there; on an error what is served stays.

        Cancellation: what is served stays.

        Args:
            number: Which.
            stream: Of which stream; of the current one if not given.

        Returns:
            What is served then.

        Raises:
            NumberNotKeptError: if what it is made of isn't there, or ``follow`` was asked for
                meanwhile.
            FleetError: if something is wrong with that.
            OSError: if it can't be read.
        """
        asked = self._times_to_follow
        async with self._turn:
            self._check_wanted(number, asked)
            followed = self._may_follow.is_set()
            self._may_follow.clear()
            self._interrupt()
            try:
                model = await self._replayed(number, stream)
                self._check_wanted(number, asked)
            except BaseException:
                if followed:
                    self._may_follow.set()
                raise
            self._beside = None
            self._swap(model)
            self.pinned = number
            await self._release()
            return model.version

    def follow(self) -> None:
        """Follow the source again after a rollback; one that is being loaded has no effect."""
        self.pinned = None
        self._times_to_follow += 1
        self._may_follow.set()

    def _check_wanted(self, number: int, asked: int) -> None:
        """Pass if ``follow`` wasn't asked for since a rollback was.

        Raises:
            NumberNotKeptError: if it was.
        """
        if self._times_to_follow != asked:
            reason = "follow was requested meanwhile"
            raise NumberNotKeptError(number=number, stream=self.served.stream, reason=reason)

    def _interrupt(self) -> None:
        """End what follows, which waits for the source, or for its turn."""
        if self._following is not None and not self._following.done():
            self._following.cancel()

    async def _follow(self) -> None:
        """Take what comes.

        Raises:
            FleetError: if something is wrong with it.
            OSError: if it can't be read.
        """
        served, self._beside = self._served, None
        is_good = served is not None and not served.is_half
        events = self.source.events(
            served.version if served and is_good else None, accept=self._check_tables
        )
        async with aclosing(events):  # type: ignore[type-var]  # a generator
            async for event in events:
                async with self._turn:
                    await self._take(event)
                self.trouble, self._wait_s = None, self._rules.retry_s

    async def _take(self, event: Event) -> None:
        """Take one event.

        Raises:
            FleetError: if it doesn't fit.
            OSError: if there is no room for a base.
        """
        match event:
            case BaseOpened(base, until):
                self._beside = await asyncio.to_thread(Model.of_base, base)
                self._until = until
            case Changed(stream, numbered):
                model = await self._within_memory(self._changing())
                await self._apply(model, stream, numbered)
            case Moment(_, moment):
                self._changing().note_moment(moment)
        if self._beside is not None and self._beside.number >= self._until:
            self._swap(self._beside)
        await self._release()

    def _changing(self) -> Model:
        """Return the model that changes are for."""
        return self.served if self._beside is None else self._beside

    async def _apply(self, model: Model, stream: str, numbered: NumberedChange) -> None:
        """Apply a change, in parts.

        Raises:
            OutOfOrderError: if it isn't the next one; nothing was changed.
            CapacityError: if there is no room for it.
        """
        began = self._clock.monotonic()
        model.check_next(stream, numbered)
        while not model.is_settled:
            await self._clock.sleep(_VIEW_POLL_S)
        for _ in model.applying(numbered):
            await asyncio.sleep(0)
        self._measures.changes.inc()
        self._measures.apply_seconds.inc(self._clock.monotonic() - began)

    async def _within_memory(self, model: Model) -> Model:
        """Return the model, or the same version of it on a newer base if it has grown large.

        Raises:
            FleetError: if something is wrong with what it is made of.
            OSError: if there is no room for a base.
        """
        if model.overlay_bytes < self._rules.memory_bytes:
            return model
        fresh = await self._on_newer_base(model)
        if fresh is None:
            fresh = await asyncio.to_thread(merged_model, model, self._rules.cache_dir)
            log.info("serving.merged", extra={"number": fresh.number})
        if model is self._beside:
            self._beside = fresh
        else:
            self._swap(fresh)
        return fresh

    async def _on_newer_base(self, model: Model) -> Model | None:
        """Return the same version on a newer base of the stream; None if there is none."""
        try:
            newest = await self.source.newest_base()
            if newest is None or newest.stream != model.stream:
                return None
            if not model.base_number < newest.number <= model.number:
                return None
            return await self._replayed(model.number, model.stream)
        except (FleetError, OSError) as error:
            self._note(error)
            return None

    async def _replayed(self, number: int, stream: str | None) -> Model:
        """Return the model of a number, made anew.

        Raises:
            NumberNotKeptError: if what it is made of isn't there.
            FleetError: if something is wrong with that.
            OSError: if it can't be read.
        """
        model: Model | None = None
        events = self.source.replay(number, accept=self._check_tables, stream=stream)
        async with aclosing(events):  # type: ignore[type-var]  # a generator
            async for event in events:
                if isinstance(event, BaseOpened):
                    model = await asyncio.to_thread(Model.of_base, event.base)
                elif isinstance(event, Changed):
                    assert model is not None, "a base comes first"
                    if model.overlay_bytes >= self._rules.memory_bytes:
                        model = await asyncio.to_thread(
                            merged_model, model, self._rules.cache_dir
                        )
                    await self._apply(model, event.stream, event.numbered)
        assert model is not None, "a base comes first"
        return model

    def _check_tables(
        self, stream: str, number: int, tables: Mapping[str, StreamTable]
    ) -> None:
        """Pass if a base may take the place of what is served; other threads may ask.

        Raises:
            OtherTablesError: if it has other tables.
        """
        served = self._served
        if served is None or self._rules.accept_other_tables:
            return
        for name, facts in served.facts.items():
            found = tables.get(name)
            rule = f"it has no table {name!r}, which is served"
            if found is not None and found.dim == facts.dim:
                continue
            if found is not None:
                rule = f"rows of table {name!r} are {found.dim} wide, not {facts.dim}"
            raise OtherTablesError(stream=stream, number=number, rule=rule)

    def _swap(self, model: Model) -> None:
        """Serve another model from now on."""
        before = self._served
        self._served, self._beside = model, None
        self._measures.swaps.inc()
        facts = {"stream": model.stream, "number": model.number, "base": model.base_number}
        if before is not None:
            facts["before"] = before.number
            self._gone.append(before)
        log.info("serving.swapped", extra=facts)

    async def _release(self) -> None:
        """Give back the memory of what was served, once no lookup has it any more."""
        if self._gone:
            gone, self._gone = self._gone, []
            await asyncio.to_thread(gone.clear)

    def _note(self, error: Exception) -> None:
        """Log, count and show what is wrong; an error that nobody planned with where it was."""
        self.trouble = error_to_wire(error)
        is_planned = isinstance(error, FleetError | OSError)
        code = "os" if isinstance(error, OSError) else str(self.trouble["code"])
        self._measures.errors.labels(code).inc()
        times = self._repeats.count(str(error), self._clock.monotonic())
        if times:
            facts = {"code": code, "reason": str(error), "times": times}
            where = None if is_planned else error
            log.warning("serving.not_followed", extra=facts, exc_info=where)
