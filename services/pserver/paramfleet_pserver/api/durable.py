"""What a pserver that keeps its training on a disk adds to each answer.

Requests of workers say which process of which pserver they are for, so that none is taken by
one that doesn't have what it builds on. Answers say which of the worker's changes are durable.
What has no number, or isn't sent again by anybody, is answered only when it is durable.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from paramfleet_pserver.durability.journal import Journal
from paramfleet_shared.errors.logs import NotDurableError, OtherTermError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.settings.failpoints import failpoint
from paramfleet_shared.system.clock import Clock

__all__ = ["ADDRESS", "DurableAnswers"]

ADDRESS = "for_server"
"""Field of a request: index and incarnation of the pserver that it is for."""

CHANGES = frozenset({"push", "step", "exchange", "void", "remove"})
"""Operations whose effect a worker sends again until it is durable."""

SETTLED = frozenset(
    {
        "declare", "join", "settle", "assign", "leave", "load", "remove", "void",
        "prepare_pass", "commit_pass", "abort_pass",
    }
)  # fmt: skip
"""Operations that are answered when what they did is durable."""

UNHELD = frozenset({"answer", "hold", "status", "states", "wait_turn", "total", "pass_state"})
"""Operations that execute no command, or wait for others that do."""

_LONGEST_WAIT_S = 600.0
"""For a request that came without a deadline."""


class DurableAnswers:
    """Answers of one process of a pserver. Used from one event loop.

    Args:
        server: Its index.
        term: Its incarnation.
        waits: Whether every change is answered only when it is durable.
        clock: By whose time deadlines are meant.
    """

    def __init__(self, *, server: int, term: int, waits: bool, clock: Clock) -> None:
        self._address = [server, term]
        self._waits = waits
        self._clock = clock

    def check_address(self, request: Request) -> None:
        """Refuse what is for another process.

        Raises:
            OtherTermError: if it is.
            MalformedMessageError: if what it is for isn't an index and an incarnation.
        """
        wanted = request.message.fields.get(ADDRESS)
        if wanted is None or wanted == self._address:
            return
        if type(wanted) is not list or [type(each) for each in wanted] != [int, int]:
            rule = "must be an index and an incarnation"
            raise MalformedMessageError(where=f"field {ADDRESS!r}", rule=rule)
        server, term = self._address
        raise OtherTermError(index=server, term=term, wanted=wanted)

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
            LogClosedError: if the log is closed before.
        """
        before, fields = journal(), request.message.fields
        if before is not None:
            if not before.accepting.is_set() and operation not in UNHELD:
                await before.accepting.wait()
            if operation in CHANGES:
                await before.room()
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
        about: dict[str, Any] = {"durable": now.durable_before(rank, incarnation)}
        return Message(fields={**answer.fields, **about}, tensors=answer.tensors)

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
        # Not asyncio.timeout: that takes a task, and a request's first step has none.
        done, _ = await asyncio.wait(
            (settling,), timeout=max(0.0, left_s - min(0.1, left_s / 2))
        )
        if done:
            settling.result()
            return
        settling.cancel()
        waited_s = self._clock.monotonic() - began
        raise NotDurableError(
            operation=operation, waited_s=waited_s, state=journal.writer.state
        )
