"""A group that another process owns, followed by a machine of its own that executes the same.

It begins with a snapshot. From then on it asks for the commands behind its position, and says
by that how far it is. What it has may be gone on with at any time: after the owner's death from
where it is, or after a handover from where the owner has stopped.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from paramfleet_pserver.commands.codec import from_bytes
from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.records import Command, Make
from paramfleet_pserver.commands.snapshot.reading import Restoring
from paramfleet_pserver.core.sums.totals import KeptTotal
from paramfleet_pserver.following.messages import (
    Commands,
    Fenced,
    Purpose,
    read_commands,
    read_fence,
    read_piece,
)
from paramfleet_pserver.following.signals import Signal
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError, OutcomeUnknownError, UnavailableError
from paramfleet_shared.errors.following import (
    CopyDamagedError,
    FollowAgainError,
    HandoverError,
    NotWholeError,
)
from paramfleet_shared.errors.logs import OtherTermError
from paramfleet_shared.errors.served import TablesNotDeclaredError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.failpoints import await_failpoint, failpoint
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.kernels.basics.parts import parts_of
from paramfleet_shared.tables.kernels.basics.readiness import compile_missing
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.tables.warm import warm

__all__ = ["GroupFollower", "Promoted"]

CALL_TIMEOUT_S = 5.0
"""Seconds of one request: a follower's question for commands is answered within one."""

UNFENCE_S = 1.0
"""The same of one to an owner that may be dead. One that lives goes on by itself later."""

PAUSE_S = 0.1
"""Seconds between two attempts to reach the owner."""

AT_ONCE = 16
"""Commands that are executed before others of this event loop have a turn."""

COMPILING_ROWS = 1 << 30
"""What a job counts for that must never run on the event loop."""

_AGAIN = (FollowAgainError, OtherTermError)
"""Errors of an owner that won't send more: not of one that is silent."""

_PASSING = (UnavailableError, OutcomeUnknownError)

log = logging.getLogger(__name__)


class Promoted(NamedTuple):
    """What a follower has, for the owner that it becomes."""

    machine: Machine
    position: int
    """Of the last command."""
    is_exact: bool
    """Whether the former owner has executed no other commands, and executes none."""
    totals: Sequence[KeptTotal] = ()
    """After a handover: of the step in progress; they aren't commands."""


class GroupFollower:
    """One copy of a group. Used from one event loop.

    Args:
        group: Number of the group.
        term: Of its owner.
        channel: To it; closed with this.
        follower: By which name the owner and the registry know this copy.
        purpose: ``replica``: changes are durable only when they are here, too. ``move``: to
            take over, and nobody waits for it until then.
        store: Where its tables go; empty.
        owners: Who works on them.
        clock: Time.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        group: int,
        *,
        term: int,
        channel: Channel,
        follower: str,
        purpose: Purpose,
        store: TableStore,
        owners: Owners,
        clock: Clock,
    ) -> None:
        self.group = group
        self.term = term
        self.follower = follower
        self.purpose = purpose
        self.store = store
        self.position = 0
        """Up to which all commands of the owner are here."""
        self.owner_position = 0
        """Of the owner, as was last known."""
        self.is_whole = False
        """Whether there is a copy that may be gone on with."""
        self._channel = channel
        self._owners = owners
        self._clock = clock
        self._session = secrets.randbits(62)
        self._machine: Machine | None = None
        self._damage: FleetError | None = None
        self._is_promoted = False
        self._fenced: Fenced | None = None
        """How the owner has stopped, if all that it had executed came since."""
        self._attempts = 0
        self._heard_at = clock.monotonic()
        self._advanced = Signal()

    @property
    def lag(self) -> int:
        """Return how many commands of the owner aren't here, as far as is known."""
        return max(0, self.owner_position - self.position)

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        return {
            "group": self.group,
            "term": self.term,
            "follower": self.follower,
            "purpose": self.purpose,
            "position": self.position,
            "lag": self.lag,
            "whole": self.is_whole,
            "silent_s": round(self._clock.monotonic() - self._heard_at, 3),
        }

    async def run(self) -> None:
        """Follow until it is promoted, cancelled, or can't go on.

        While the owner is silent it is tried again and again: what is here may be needed. So it
        is while as many follow as may: those that have died are counted for some seconds.

        Raises:
            FollowAgainError: if the owner can't send more. The registry doesn't name this copy
                then: it may be let go, and another one begun.
            CopyDamagedError: if a command couldn't be executed; as ``FollowAgainError``.
            OtherTermError: if another process owns the group. The registry may still name this
                copy: it is kept until it doesn't.
            FleetError: why the snapshot can't be had or restored.
        """
        try:
            await self._receive()
            while not self._is_promoted:
                await self._advance()
        except OtherTermError:
            raise
        except FleetError as error:
            if self._is_promoted:
                return
            log.warning("follower.ended", extra={**self.facts(), "reason": str(error)})
            await self._release()
            raise

    async def hand_over(self, *, timeout_s: float) -> int:
        """Have the owner stop, and return when all that it has executed is here.

        ``run`` goes on meanwhile. After an error the owner goes on, or will be asked to as soon
        as it can be reached; if it can't be, it joins anew under a higher term.

        Returns:
            The term under which the owner was stopped: the one to succeed, and no other.

        Raises:
            HandoverError: if the owner refuses, or the time is over.
        """
        self._attempts += 1
        self._fenced = None
        deadline = self._clock.monotonic() + timeout_s
        try:
            fenced = await self._fence(deadline)
        except HandoverError:
            await self._unfence()
            raise
        except FleetError as error:
            await self._unfence()
            raise HandoverError(reason=str(error)) from error
        except BaseException:
            await self._unfence()
            raise
        self._fenced = fenced
        return fenced.term

    async def _fence(self, deadline: float) -> Fenced:
        """Have the owner stop, and wait for the rest.

        Raises:
            HandoverError: if the owner refuses, or the time is over.
            FleetError: if it can't be reached.
        """
        left_s = deadline - self._clock.monotonic()
        if not self.is_whole:
            raise HandoverError(reason="its snapshot isn't complete")
        answer = await self._call(
            "fence", timeout_s=left_s, attempt=self._attempts, have=self.position
        )
        fenced = read_fence(answer)
        last = fenced.position
        while self.position < last:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or self._damage is not None:
                raise HandoverError(reason=f"command {self.position + 1} of {last} didn't come")
            await self._advanced.wait(left_s)
        return fenced

    async def _unfence(self) -> None:
        """Let the owner go on, if it can be reached: this won't take over."""
        try:
            await self._call("unfence", timeout_s=UNFENCE_S, attempt=self._attempts)
        except FleetError as error:
            log.warning("follower.not_unfenced", extra={**self.facts(), "reason": str(error)})

    async def promote(self, *, succeeds: int | None = None) -> Promoted:
        """Return what is here, to be gone on with as the owner; following ends.

        Args:
            succeeds: After a handover the term that the registry still had when it gave the
                next one. It is exact if that is the one under which the owner has stopped:
                the owner may have gone on under another since. None takes it over.

        Raises:
            NotWholeError: if there is no copy that may be.
        """
        machine = self._machine
        if machine is None or not self.is_whole or self._damage is not None:
            reason = "its snapshot isn't complete" if self._damage is None else self._damage
            raise NotWholeError(reason=str(reason))
        self._is_promoted = True
        failpoint("handover_promoted")
        await self._settle(machine)
        try:
            machine.check_whole()
        except FleetError as error:
            raise NotWholeError(reason=str(error)) from error
        fenced = self._fenced
        if fenced is None or succeeds != fenced.term:
            return Promoted(machine, self.position, is_exact=False)
        return Promoted(machine, self.position, is_exact=True, totals=fenced.totals)

    async def close(self) -> None:
        """Close the connection. ``run`` has ended, or was cancelled."""
        await self._channel.close()

    async def _receive(self) -> None:
        """Receive the snapshot.

        Raises:
            FleetError: why there is none, or it can't be restored.
        """
        answer = await self._ask(
            "follow", passing=(TablesNotDeclaredError,), purpose=self.purpose
        )
        position = Fields(answer.fields, where="follow").integer("position")
        restoring = Restoring(self.store, self._owners)
        part, is_last = 0, False
        while not is_last:
            part += 1
            answer = await self._ask("follow_snapshot", part=part)
            piece, is_last = read_piece(answer, part)
            await restoring.take(piece)
            if part == 1:
                failpoint("follower_snapshot_half")
            await asyncio.sleep(0)
        machine = restoring.machine()
        await self._warm([table.spec for table in self.store])
        self._machine = machine
        self.position = self.owner_position = position
        self.is_whole = True
        log.info("follower.whole", extra=self.facts())

    async def _advance(self) -> None:
        """Say how far this is, and execute what comes.

        Raises:
            FollowAgainError: if the owner can't send more.
            OtherTermError: if another process owns the group.
            CopyDamagedError: if a command can't be executed.
            MalformedMessageError: if what comes aren't commands.
        """
        machine = self._machine
        assert machine is not None, "it was received"
        await await_failpoint("before_append_ack", self._clock)
        answer = await self._ask("follow_log", have=self.position)
        found = read_commands(answer, self.position + 1)
        self.owner_position = found.position
        await self._settle(machine)
        await self._execute(machine, found)

    async def _execute(self, machine: Machine, found: Commands) -> None:
        for position, body in enumerate(found.bodies, start=found.start):
            if position % AT_ONCE == 0:
                await asyncio.sleep(0)
            if self._is_promoted:
                return
            try:
                command = await self._prepared(from_bytes(body, self.store))
                machine.check_whole()
                machine.execute(command)
            except FleetError as error:
                self._damage = CopyDamagedError(position=position, reason=str(error))
                self._advanced.fire()
                raise self._damage from error
            self.position = position
        self._advanced.fire()

    async def _prepared(self, command: Command) -> Command:
        """Return a command with what takes a while to make, made beside the event loop."""
        if not isinstance(command, Make):
            return command
        new = self.store.check(command.specs)
        await self._warm(new)
        built = [await asyncio.to_thread(self.store.build, spec) for spec in new]
        return replace(command, built=tuple(built))

    async def _warm(self, specs: list[TableSpec]) -> None:
        storages = {spec.storage for spec in specs if spec.kind == "sparse"}
        await compile_missing(parts_of(storages, "float32"), self._clock)
        for spec in specs:
            await self._owners.run([Job(0, COMPILING_ROWS, partial(warm, spec))])

    async def _settle(self, machine: Machine) -> None:
        """Wait until all that was executed has ended: no more than that waits in memory."""
        await machine.settle()
        await self._owners.settle()

    async def _release(self) -> None:
        """Return when the registry doesn't name this copy; the owner sees to that."""
        released = False
        while not released and not self._is_promoted:
            answer = await self._ask("unfollow", passing=(FollowAgainError,))
            released = Fields(answer.fields, where="unfollow").flag("released")

    async def _ask(
        self, operation: str, *, passing: tuple[type[FleetError], ...] = (), **fields: Any
    ) -> Message:
        """Ask the owner until it answers.

        Raises:
            NotWholeError: if it was promoted meanwhile.
            FleetError: what it answers, unless that passes.
        """
        while True:
            try:
                return await self._call(operation, timeout_s=CALL_TIMEOUT_S, **fields)
            except FleetError as error:
                is_passing = isinstance(error, _PASSING) and not isinstance(error, _AGAIN)
                if not is_passing and not isinstance(error, passing):
                    raise
            if self._is_promoted:
                raise NotWholeError(reason="it was promoted")
            await self._clock.sleep(PAUSE_S)

    async def _call(self, operation: str, *, timeout_s: float, **fields: Any) -> Message:
        about = {
            "for_server": [self.group, self.term],
            "follower": self.follower,
            "session": self._session,
        }
        answer = await self._channel.call(
            operation, Message(fields={**about, **fields}), timeout_s=max(0.001, timeout_s)
        )
        self._heard_at = self._clock.monotonic()
        return answer
