"""A group's owner, as those know it that follow: snapshots, commands, and the handover.

A follower begins with ``follow`` and gets a snapshot in pieces, and then commands from its
position on. Each question for commands says how far it is; that is its acknowledgement. Who is
silent for too long, or lags by more than what is kept, begins anew.

All requests may be repeated.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from paramfleet_pserver.commands.snapshot.writing import take_image
from paramfleet_pserver.durability.copies.registered import Proposal
from paramfleet_pserver.durability.journal import Journal
from paramfleet_pserver.following.messages import (
    MOST_COMMANDS,
    PURPOSES,
    FollowRequest,
    Purpose,
    commands_message,
    fence_message,
    follow_request,
    piece_message,
)
from paramfleet_pserver.following.ownership import Ownership
from paramfleet_pserver.following.sessions import Handover, Session
from paramfleet_pserver.following.signals import Signal
from paramfleet_pserver.following.transfer import Transfer
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.errors.following import (
    FollowAgainError,
    HandoverError,
    NotExpectedError,
    NotMovableError,
    TooManyFollowersError,
)
from paramfleet_shared.errors.served import TablesNotDeclaredError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.failpoints import failpoint
from paramfleet_shared.system.clock import Clock

__all__ = ["FOLLOWING", "Followers"]

FOLLOWING = ("follow", "follow_snapshot", "follow_log", "fence", "unfence", "unfollow")
"""Operations of followers, by the names they have on the wire."""

MAX_FOLLOWERS = 4
"""Of one group: each may have an image of it, whose changed rows are copied."""

SILENCE_S = 5.0
"""Seconds without a request after which a follower isn't counted on any more."""

ALIVE_S = 2.5
"""Seconds since a request, within which no other session of its name may replace a follower."""

STALLED_S = 60.0
"""Seconds without another piece of a snapshot, after which it isn't kept for a follower."""

LOOK_S = 0.5
"""Seconds between two looks for silent ones."""

POLL_S = 1.0
"""Seconds that a follower waits for a command, at most."""

LINGER_S = 0.004
"""Seconds for which commands are gathered: a request costs more than a command."""

BATCH_BYTES = 1 << 20
"""Of commands in one answer, but for one alone."""

NEAR_BYTES = 1 << 20
"""A follower that lags by less may be counted, or be handed the group."""

log = logging.getLogger(__name__)


class Followers:
    """Those who follow one group. Used from one event loop, by its owner.

    Args:
        ownership: Where requests of workers wait after ``fence``.
        training: Returns the training; None before it has begun.
        clock: Time.
    """

    def __init__(
        self, ownership: Ownership, training: Callable[[], Training | None], *, clock: Clock
    ) -> None:
        self.handover: Handover | None = None
        """Set while a follower is about to take over."""
        self._ownership = ownership
        self._training = training
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._expected: Mapping[str, Purpose] | None = None
        """Who may follow, and for what; None for anybody."""
        self._target: str | None = None
        """Who of these is to get the group."""
        self._signal = Signal()
        """Fired when there are commands, when copies have changed, and by a fence."""
        self._asked = Signal()
        """Fired when the process may have something to do."""
        self._alarm: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def follow(self, request: Request) -> Message:
        """Begin a snapshot for a follower.

        Raises:
            TablesNotDeclaredError: if no training has begun.
            NotExpectedError: if the plan doesn't name it for that purpose, or another session
                of its name is served.
            NotMovableError: if there is something that a follower couldn't have.
            TooManyFollowersError: if as many follow as may.
            FollowAgainError: if the registry still names what the follower had before.
            FleetError: why there is no image; see ``take_image``.
        """
        asked = follow_request(request.message, "follow")
        training, journal = self._begun("follow")
        self._ownership.check()
        purpose = asked.fields.choice("purpose", PURPOSES, PURPOSES[0])
        if self._expected is not None and self._expected.get(asked.follower) != purpose:
            reason = f"it isn't to follow group {self._ownership.group} ({purpose})"
            raise NotExpectedError(follower=asked.follower, reason=reason)
        if training.terms.sync_batch_norm and purpose == "replica":
            raise NotMovableError(what="sync_batch_norm")  # sums of a step aren't commands
        session = self._sessions.get(asked.follower)
        if session is None or session.number != asked.session:
            session = self._begin(asked, training, journal)
        session.seen_at = self._clock.monotonic()
        assert session.beginning is not None, "it has begun"
        await asyncio.shield(session.beginning)
        return Message(fields={"position": session.have})

    async def follow_snapshot(self, request: Request) -> Message:
        """Answer with a piece of the snapshot.

        Raises:
            FollowAgainError: if there is none.
            MalformedMessageError: if another piece was to come.
            FleetError: why it can't be read.
        """
        asked = follow_request(request.message, "follow_snapshot")
        part = asked.fields.integer("part", least=1)
        session = self._session(asked)
        if session.is_whole or session.beginning is None:
            raise self._over(asked, "its snapshot was let go")
        transfer = await asyncio.shield(session.beginning)
        try:
            piece, is_last = await transfer.piece(part)
        finally:
            session.seen_at = self._clock.monotonic()
        if part > session.part:
            session.part, session.progressed_at = part, session.seen_at
        session.is_sent = session.is_sent or is_last
        return piece_message(part, piece, is_last=is_last)

    async def follow_log(self, request: Request) -> Message:
        """Take note of how far a follower is, and answer with what is next, once there is.

        Raises:
            FollowAgainError: if what it lacks isn't kept.
        """
        asked = follow_request(request.message, "follow_log")
        have = asked.fields.integer("have")
        session, (_, journal) = self._session(asked), self._begun("follow_log")
        if have < session.have:
            raise self._over(asked, "this was asked before")  # it was late: nobody waits for it
        if not session.is_sent:
            raise self._over(asked, "it hasn't fetched its snapshot")
        if not journal.stream.has(have):
            self._end(session)
            raise self._over(asked, f"the commands after {have} aren't kept")
        self._advance(session, journal, have)
        left_s = POLL_S
        if request.deadline is not None:
            left_s = min(left_s, (request.deadline - self._clock.monotonic()) / 2)
        if journal.position == have and left_s > 0:
            await self._signal.wait(left_s)
            if journal.stream.lag_bytes(have) < BATCH_BYTES and self.handover is None:
                await asyncio.sleep(LINGER_S)
        if self._sessions.get(session.follower) is not session or not journal.stream.has(have):
            self._end(session)
            raise self._over(asked, f"the commands after {have} aren't kept")
        session.seen_at = self._clock.monotonic()
        bodies = journal.stream.after(have, most_bytes=BATCH_BYTES, most=MOST_COMMANDS)
        return commands_message(have + 1, bodies, position=journal.position)

    async def fence(self, request: Request) -> Message:
        """Execute nothing more, for a follower that is about to take over.

        Raises:
            HandoverError: if it can't.
        """
        asked = follow_request(request.message, "fence")
        attempt, have = asked.fields.integer("attempt", least=1), asked.fields.integer("have")
        self._session(asked)
        if not await self._is_target(asked.follower):
            raise HandoverError(reason="the plan doesn't give the group to it")
        session, (training, journal) = self._session(asked), self._begun("fence")
        if session.is_sent and have >= session.have and journal.stream.has(have):
            self._advance(session, journal, have)
        reason = self._hindrance(session, journal, attempt)
        if reason:
            raise HandoverError(reason=reason)
        if self.handover is None:
            self._ownership.fence()
            now = self._clock.monotonic()
            self.handover = Handover(session.follower, attempt, journal.position, now)
            failpoint("handover_fenced")
            self._signal.fire()
            self._asked.fire()
            facts = {"follower": session.follower, "position": journal.position}
            log.info("group.fenced", extra={"group": self._ownership.group, **facts})
        self.handover = self.handover._replace(attempt=attempt)
        totals = training.waits.kept_totals()
        return fence_message(self.handover.position, totals, term=self._ownership.term)

    async def unfence(self, request: Request) -> Message:
        """Go on: the follower won't take over, and hasn't asked for the group.

        One that is late, of an attempt before the newest, has no effect: the follower may have
        asked for the group since.

        Raises:
            FollowAgainError: if its session is over.
            MovedError: if another owner has the group.
        """
        asked = follow_request(request.message, "unfence")
        session = self._session(asked)
        attempt, handover = asked.fields.integer("attempt"), self.handover
        session.last_attempt = max(session.last_attempt, attempt)
        is_own = handover is not None and handover.follower == session.follower
        if handover is not None and is_own and handover.attempt <= attempt:
            if self._ownership.is_moved:
                raise self._ownership.refusal()
            self.resume(self._ownership.term)
        return Message()

    async def unfollow(self, request: Request) -> Message:
        """Answer whether a follower may drop its copy: the registry doesn't name it."""
        asked = follow_request(request.message, "unfollow")
        session = self._sessions.get(asked.follower)
        if session is not None and session.number == asked.session:
            self._end(session)
        training = self._training()
        if training is None or training.journal is None:
            return Message(fields={"released": True})
        copies = training.journal.copies
        if copies.may_be_registered(asked.follower):
            await self._signal.wait(POLL_S)
        return Message(fields={"released": not copies.may_be_registered(asked.follower)})

    def proposal(self) -> Proposal | None:
        """Return which copies the registry is to name; None if it names the right ones."""
        journal = self._journal()
        return None if journal is None or self._ownership.is_moved else journal.proposal()

    def named(self) -> tuple[int, frozenset[str]]:
        """Return the newest proposal that is known to be written; its number is 0 for none."""
        journal = self._journal()
        if journal is None:
            return 0, frozenset()
        return journal.copies.number, journal.copies.registered

    async def changed(self, timeout_s: float) -> None:
        """Return when there may be another proposal, or a handover, or the time is over."""
        await self._asked.wait(timeout_s)

    def written(self, number: int) -> None:
        """Take note that the registry has a proposal, and so none before it any more."""
        journal = self._journal()
        if journal is not None:
            journal.written(number)
            self._signal.fire()

    def inherit(self, ids: Collection[str]) -> None:
        """Take note of the copies that the registry names of the owner before this one."""
        journal = self._journal()
        assert journal is not None, "a training was gone on with"
        now = self._clock.monotonic()
        journal.copies.inherit(ids, position=journal.position, now=now)

    def expect(self, followers: Mapping[str, Purpose], *, target: str | None = None) -> None:
        """Let only these follow, each for its purpose, as the plan says; forget others.

        Args:
            followers: Their names.
            target: Who of them is to get the group; None for nobody.
        """
        self._expected = dict(followers)
        if target != self._target:
            self._target = target
            self._signal.fire()
        for each in [name for name in self._sessions if name not in followers]:
            self.forget(each)

    def forget(self, follower: str) -> None:
        """Don't count on a follower any more: its process has ended."""
        session = self._sessions.get(follower)
        if session is not None:
            self._end(session)
        journal = self._journal()
        if journal is not None:
            journal.copies.drop(follower)
            self._asked.fire()

    def resume(self, term: int) -> None:
        """Go on as the owner, after a fence."""
        self.handover = None
        self._ownership.resume(term)

    def go_on(self, term: int) -> None:
        """Go on as the owner under a newer term: a handover wasn't finished in its time.

        Who has let it pass begins with a new snapshot before it may stop the owner again.
        """
        handover = self.handover
        self.resume(term)
        session = None if handover is None else self._sessions.get(handover.follower)
        if session is not None:
            self._end(session)

    def facts(self) -> list[dict[str, Any]]:
        """Return what an operator may ask of each follower."""
        journal = self._journal()
        if journal is None:
            return []
        now, stream, copies = self._clock.monotonic(), journal.stream, journal.copies
        return [
            {
                **each.facts(),
                "lag": journal.position - each.have,
                "lag_bytes": stream.lag_bytes(max(each.have, stream.first - 1)),
                "counted": copies.is_counted(each.follower),
                "registered": each.follower in copies.registered,
                "silent_s": round(now - each.seen_at, 3),
            }
            for each in self._sessions.values()
        ]

    async def close(self) -> None:
        """Let nobody follow any more."""
        if self._alarm is not None:
            self._alarm.cancel()
        for session in list(self._sessions.values()):
            self._end(session)
        if self._closing:
            await asyncio.wait(self._closing)

    def _journal(self) -> Journal | None:
        training = self._training()
        return None if training is None else training.journal

    def _begun(self, operation: str) -> tuple[Training, Journal]:
        training = self._training()
        if training is None:
            raise TablesNotDeclaredError(operation=operation)
        assert training.journal is not None, "a group that can be followed has one"
        return training, training.journal

    def _session(self, asked: FollowRequest) -> Session:
        session = self._sessions.get(asked.follower)
        if session is None or session.number != asked.session:
            raise self._over(asked, "the owner doesn't know of it")
        session.seen_at = self._clock.monotonic()
        return session

    async def _is_target(self, follower: str) -> bool:
        """Return whether the plan gives the group to a follower, which may know that first."""
        deadline = self._clock.monotonic() + POLL_S
        while self._expected is not None and follower != self._target:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return False
            await self._signal.wait(left_s)
        return True

    def _over(self, asked: FollowRequest, reason: str) -> FollowAgainError:
        return FollowAgainError(follower=asked.follower, reason=reason)

    def _begin(self, asked: FollowRequest, training: Training, journal: Journal) -> Session:
        former, now = self._sessions.get(asked.follower), self._clock.monotonic()
        if former is not None and now - former.seen_at <= ALIVE_S:
            reason = "another session of its name is served"
            raise NotExpectedError(follower=asked.follower, reason=reason)
        if former is not None:
            self._end(former)
        if journal.copies.may_be_registered(asked.follower):
            journal.copies.drop(asked.follower)
            self._asked.fire()
            raise self._over(asked, "the registry (Redis) still names the copy that it had")
        if len(self._sessions) >= MAX_FOLLOWERS:
            raise TooManyFollowersError(limit=MAX_FOLLOWERS)
        purpose = asked.fields.choice("purpose", PURPOSES, PURPOSES[0])
        session = Session(asked.follower, asked.session, purpose, now)
        self._sessions[asked.follower] = session
        journal.stream.begin()
        journal.on_append = self._signal.fire
        loop = asyncio.get_running_loop()
        session.beginning = loop.create_task(self._take_image(session, training, journal))
        session.beginning.add_done_callback(lambda task: self._note_begun(session, task))
        if self._alarm is None:
            self._alarm = loop.call_later(LOOK_S, self._look)
        return session

    async def _take_image(
        self, session: Session, training: Training, journal: Journal
    ) -> Transfer:
        """Take an image, while commands are held back.

        Raises:
            TablesDamagedError: if a change was applied in part.
        """
        hold = journal.hold()
        try:
            image = await take_image(training.machine)
        except BaseException:
            hold.end()
            raise
        session.have = journal.position
        if image.is_apart:
            hold.end()
        else:
            self._keep(hold.end_with(image))
        self._resize(journal)
        return Transfer(image)

    def _note_begun(self, session: Session, task: "asyncio.Task[Transfer]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._end(session)

    def _advance(self, session: Session, journal: Journal, have: int) -> None:
        """Take note that a follower has all up to a position."""
        if not session.is_whole:
            session.is_whole = True
            self._close_transfer(session)
            self._resize(journal)
        session.have = have
        copies = journal.copies
        if session.purpose == "replica":
            is_new = not copies.is_counted(session.follower)
            if not is_new or journal.stream.lag_bytes(have) <= NEAR_BYTES:
                copies.count(session.follower, have)
                journal.progress()
            if session.follower not in copies.registered:
                self._asked.fire()
        journal.stream.release(min(each.have for each in self._sessions.values()))

    def _hindrance(self, session: Session, journal: Journal, attempt: int) -> str:
        """Return why a follower can't be handed the group; empty if it can."""
        handover, reason = self.handover, ""
        if handover is not None and handover.follower != session.follower:
            reason = f"follower {handover.follower} is about to have it"
        elif attempt <= session.last_attempt or (handover and attempt < handover.attempt):
            reason = "that attempt was given up"
        elif handover is None:
            lag_bytes = journal.stream.lag_bytes(session.have) if session.is_whole else 0
            if not session.is_whole:
                reason = "it hasn't its snapshot yet"
            elif lag_bytes > NEAR_BYTES:
                reason = f"it lags by {lag_bytes:,} bytes"
            elif journal.reports and journal.copies.has_inherited:
                reason = "no copy was made since the last owner had it"
        return reason

    def _end(self, session: Session) -> None:
        """Know a session no more."""
        if self._sessions.get(session.follower) is not session:
            return
        del self._sessions[session.follower]
        self._close_transfer(session)
        journal = self._journal()
        if journal is not None:
            journal.copies.drop(session.follower)
            if not self._sessions:
                journal.stream.end()
            journal.progress()
        self._signal.fire()
        self._asked.fire()

    def _close_transfer(self, session: Session) -> None:
        beginning, session.beginning = session.beginning, None
        if beginning is not None:
            self._keep(_close(beginning))

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _resize(self, journal: Journal) -> None:
        """Keep as many commands as a follower may need that is receiving a snapshot."""
        training = self._training()
        assert training is not None, "it has begun"
        is_receiving = any(not each.is_whole for each in self._sessions.values())
        more = sum(table.num_bytes for table in training.machine.store) if is_receiving else 0
        journal.stream.limit_bytes = journal.stream_bytes + more

    def _look(self) -> None:
        """End the sessions of those who are silent, or fetch no more of their snapshots."""
        self._alarm = None
        now = self._clock.monotonic()
        for session in list(self._sessions.values()):
            is_fencing = self.handover is not None
            facts = {"group": self._ownership.group, "follower": session.follower}
            if now - session.seen_at > SILENCE_S and not is_fencing:
                log.warning("follower.silent", extra=facts)
                self._end(session)
            elif now - session.progressed_at > STALLED_S and not session.is_whole:
                log.warning("follower.stalled", extra=facts)
                self._end(session)
        if self._sessions:
            self._alarm = asyncio.get_running_loop().call_later(LOOK_S, self._look)


async def _close(beginning: "asyncio.Task[Transfer]") -> None:
    """Let go of a snapshot, whether it was sent or is about to be taken."""
    try:
        transfer = await beginning
    except Exception:  # noqa: BLE001 -- who asked for it has got that
        return
    await transfer.close()
