"""What a pserver whose training outlives its process adds to each answer.

Requests of workers say which process of which pserver they are for, so that none is taken by
one that doesn't have what it builds on. Answers say which of the worker's changes are durable.
What has no number, or isn't sent again by anybody, is answered only when it is durable.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from paramfleet_pserver.durability.journal import Journal
from paramfleet_pserver.following.ownership import Ownership
from paramfleet_pserver.following.serving import FOLLOWING
from paramfleet_shared.errors.logs import NotDurableError, OtherTermError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.settings.failpoints import failpoint
from paramfleet_shared.system.clock import Clock

__all__ = ["ADDRESS", "DurableAnswers"]

ADDRESS = "for_server"
"""Field of a request: index and incarnation of the pserver that it is for."""

CHANGES = frozenset(
    {"push", "step", "exchange", "void", "remove", "discount", "write", "begin"}
)
"""Operations whose effect a worker sends again until it is durable."""

SETTLED = frozenset(
    {
        "declare", "settle", "assign", "leave", "load", "remove", "discount", "write", "void",
        "prepare_pass", "commit_pass", "abort_pass",
    }
)  # fmt: skip
"""Operations that are answered when what they did is durable."""

UNHELD = frozenset(
    {
        "answer", "hold", "saved", "status", "states", "wait_turn", "total", "norm",
        "await_step",         "pass_state", "progress",
    }
)  # fmt: skip
"""Operations that execute no command, or wait for others that do."""

UNFENCED = frozenset({"status"})
"""Operations that are served whoever owns the group."""

_LONGEST_WAIT_S = 600.0
"""For a request that came without a deadline."""


class DurableAnswers:
    """Answers of one process of a pserver. Used from one event loop.

    Args:
        ownership: Where requests wait while another process is about to own the group.
        waits: Whether every change is answered only when it is durable.
        clock: By whose time deadlines are meant.
    """

    def __init__(self, *, ownership: Ownership, waits: bool, clock: Clock) -> None:
        self._ownership = ownership
        self._former: set[int] = set()
        """Terms that this process had the group in before."""
        self._waits = waits
        self._clock = clock

    def check_address(self, operation: str, request: Request) -> None:
        """Refuse what is for another process.

        Raises:
            OtherTermError: if it is.
            MalformedMessageError: if what it is for isn't an index and an incarnation.
        """
        if self._ownership.is_moved and operation not in UNFENCED:
            raise self._ownership.refusal()
        wanted = request.message.fields.get(ADDRESS)
        if wanted is None:
            return
        if type(wanted) is not list or [type(each) for each in wanted] != [int, int]:
            rule = "must be an index and an incarnation"
            raise MalformedMessageError(where=f"field {ADDRESS!r}", rule=rule)
        address = [self._ownership.group, self._ownership.term]
        if wanted == address:
            return
        group, term = wanted
        if operation in FOLLOWING and group == self._ownership.group and term in self._former:
            return  # nothing was lost since
        raise OtherTermError(index=address[0], term=address[1], wanted=wanted)

    def begin_term(self, term: int) -> None:
        """Go on under another term."""
        self._former.add(self._ownership.term)
        self._ownership.resume(term)

    def is_plain(self, journal: Journal | None) -> bool:
        """Return whether a request is served and answered as it is."""
        return self._ownership.is_active and journal is not None and journal.is_plain

    async def serve(
        self,
        journal: Callable[[], Journal | None],
        operation: str,
        request: Request,
        handler: Callable[[Request], Awaitable[Message]],
    ) -> Message:
        """Serve a request, and say what is durable; raises what the handler raises.

        Args:
            journal: Returns the training's; None before it has begun.
            operation: What is asked for.
            request: It.
            handler: Serves it.

        Raises:
            NotDurableError: if the deadline comes before what was done is durable.
            MovedError: if another process owns the group by then.
            LogClosedError: if the log is closed before.
        """
        fields = request.message.fields
        if operation not in UNFENCED:
            await self._pass(journal, operation)
        answer = await handler(request)
        now = journal()
        if now is None:
            return answer
        is_change = operation in CHANGES
        if is_change:
            failpoint("after_log_before_answer")
        if operation in SETTLED or (is_change and (self._waits or fields.get("durably"))):
            await self._settle(now, operation, request)
        rank, incarnation = fields.get("rank"), fields.get("incarnation")
        if type(rank) is not int or type(incarnation) is not int:
            return answer
        about: dict[str, Any] = {}
        if now.reports:
            about["durable"] = now.durable_before(rank, incarnation)
        if operation == "join":
            about["taken"] = now.taken_before(rank, incarnation)
        return Message(fields={**answer.fields, **about}, tensors=answer.tensors)

    async def _pass(self, journal: Callable[[], Journal | None], operation: str) -> None:
        """Return when a request may be served.

        Raises:
            MovedError: if another process owns the group by then.
            LogClosedError: if the log is closed before.
        """
        await self._ownership.until_active()
        before = journal()
        if before is None:
            return
        if not before.accepting.is_set() and operation not in UNHELD:
            await before.accepting.wait()
        if operation in CHANGES:
            await before.until_accepting()
        await self._ownership.until_active()

    async def _settle(self, journal: Journal, operation: str, request: Request) -> None:
        """Wait until all that was executed is durable.

        Raises:
            NotDurableError: if the deadline comes first.
            LogClosedError: if the log is closed before.
        """
        if journal.is_settled:
            return
        began = self._clock.monotonic()
        left_s = _LONGEST_WAIT_S if request.deadline is None else request.deadline - began
        settling = asyncio.get_running_loop().create_task(journal.settle())
        settling.add_done_callback(_note_seen)  # also of a request that is cancelled meanwhile
        # Not asyncio.timeout: that takes a task, and a request's first step has none.
        try:
            done, _ = await asyncio.wait(
                (settling,), timeout=max(0.0, left_s - min(0.1, left_s / 2))
            )
        finally:
            settling.cancel()
        if done:
            settling.result()
            return
        waited_s = self._clock.monotonic() - began
        raise NotDurableError(operation=operation, waited_s=waited_s, state=journal.state)


def _note_seen(settling: "asyncio.Task[None]") -> None:
    if not settling.cancelled():
        settling.exception()
