"""Saving on all pservers at one moment, while other workers go on pushing.

A push goes to every pserver, and each takes it when it comes. So at any moment some pservers
have taken pushes that others haven't. The saver has all of them hold what comes from now on,
learns what each has taken, and has each let through what another one has: then all hold the
same pushes, and take images. A pserver lets pushes go on as soon as it has its own, and
writes it beside the training.

In sync nothing is held: until worker 0 has begun its save, no step is whole.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paramfleet.transport.pservers import PServers, answers_of
from paramfleet.transport.requests import Author
from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock

__all__ = ["ATTEMPTS", "Begun", "Verdict", "begin_everywhere", "end_everywhere", "judge"]

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a save is tried that a pserver loses, because its process is replaced."""

HOLD_S = 30.0
"""Seconds for which a pserver holds pushes: if the saver dies, they wait no longer."""

PATIENCE_S = 10.0
"""Seconds to wait for pushes that some pservers have and others don't."""

POLL_S = 20.0
"""Seconds that a pserver is asked to wait for the end of writing."""

_FIRST_POLL_S = 0.005
_MAX_POLL_S = 0.1

_LET_GO_S = 5.0
"""Seconds to try to end what is held."""

Source = tuple[int, int]
"""Worker and incarnation."""


class _Taken(NamedTuple):
    """Which changes a pserver has taken."""

    end: int = FIRST_SEQUENCE
    """All before it."""
    later: tuple[int, ...] = ()
    """And these."""
    voided: tuple[int, ...] = ()
    """Those of them that had no effect: the pserver refused them, and the worker gave up."""

    @property
    def last(self) -> int:
        return max(self.later, default=self.end - 1)

    @property
    def num(self) -> int:
        return self.end + len(self.later)

    def has(self, sequence: int) -> bool:
        return sequence < self.end or sequence in self.later


class Verdict(NamedTuple):
    """What the pservers' answers mean together."""

    agree: bool
    """Whether all hold the same pushes."""
    targets: list[list[Any]]
    """What is to be let through: worker, incarnation, last sequence."""
    reason: str
    """What one lacks, in words; empty if they agree."""
    hopeless: bool
    """Whether it can't come any more."""


def judge(answers: Sequence[Mapping[str, Any]]) -> Verdict:
    """Compare which pushes pservers have taken.

    Args:
        answers: The fields of each one's answer to ``hold``.
    """
    taken = [
        {
            (int(rank), int(life)): _Taken(int(end), tuple(later), tuple(voided))
            for rank, life, end, later, voided in answer["taken"]
        }
        for answer in answers
    ]
    lives = [{int(rank): int(life) for rank, life in a["incarnations"]} for a in answers]
    targets: list[list[Any]] = []
    reason, hopeless = "", False
    for source in sorted({source for each in taken for source in each}):
        found = [each.get(source, _Taken()) for each in taken]
        targets.append([*source, max(each.last for each in found)])
        if len(set(found)) == 1:
            continue
        refused = _refused(source, found)
        behind = min(range(len(found)), key=lambda server: found[server].num)
        is_gone = lives[behind].get(source[0], 0) > source[1]
        will_not_come = is_gone or bool(refused)
        if not reason or (will_not_come and not hopeless):
            ahead = max(range(len(found)), key=lambda server: found[server].num)
            reason = refused or _lack(
                source, found, behind=behind, ahead=ahead, is_gone=is_gone
            )
        hopeless |= will_not_come
    for server, answer in enumerate(answers):
        for rank, life in answer["unfinished"]:
            is_gone = lives[server].get(int(rank), 0) > int(life)
            hopeless |= is_gone
            reason = reason or (
                f"worker {rank} {'was lost' if is_gone else 'is'} in the middle of an exchange"
            )
    return Verdict(not reason, targets, reason, hopeless)


class Begun(NamedTuple):
    """A save of which every pserver has its image."""

    name: str
    answers: list[Message]
    cut: Cut
    """Whether the images are of one moment; if not it says why."""
    author: Author
    """Who saves."""
    is_increment: bool = False
    """Whether they write only what changed since another save."""


async def begin_everywhere(
    pservers: PServers,
    author: Author,
    folder: str,
    *,
    in_sync: bool,
    clock: Clock,
    more: Mapping[str, Any] | None = None,
) -> Begun:
    """Have every pserver take its image for a checkpoint; runs on the communicator's loop.

    They write it beside the training from then on. Where one lets pushes go on too early, as
    a pserver that started again does, the moment is looked for again.

    Args:
        pservers: All of the job.
        author: Who saves.
        folder: An absolute path, the same on every machine.
        in_sync: Whether the mode is sync.
        clock: For waits, and for how long it took.
        more: Fields of ``save``: what the pservers ask the workers for while they write, and
            ``chain``. Where a pserver doesn't know what changed since its ``since``, all
            write everything.

    Raises:
        FleetError: if a pserver couldn't take it. No pserver holds pushes after that.
    """
    fields = {**author.fields(), "dirname": folder, **(more or {})}
    begun = await _begin_once(pservers, author, fields, in_sync=in_sync, clock=clock)
    chain = fields.get("chain", {})
    if begun.is_increment or not chain.get("since"):
        return begun
    fields["chain"] = {**chain, "since": ""}
    return await _begin_once(pservers, author, fields, in_sync=in_sync, clock=clock)


async def _begin_once(
    pservers: PServers, author: Author, fields: dict[str, Any], *, in_sync: bool, clock: Clock
) -> Begun:
    attempt = 0
    while True:
        attempt += 1
        began = clock.monotonic()
        name = secrets.token_hex(8)
        saving = {**fields, "apart": name}
        if in_sync:
            answers = await _save(pservers, saving)
            reason = _different_steps(answers)
            seconds = clock.monotonic() - began
            cut = Cut(consistent=not reason, reason=reason, paused_s=round(seconds, 3))
            return Begun(name, answers, cut, author, _are_increments(answers))
        hold = {**author.fields(), "cut": name}
        try:
            reason = await _hold(pservers, hold, clock)
            answers = await _save(pservers, {**saving, "cut": name})
        except FleetError:
            await _let_go(pservers, hold)
            raise
        let_go = [server for server, each in enumerate(answers) if not each.fields["held"]]
        if let_go and not reason:
            reason = f"pserver {let_go[0]} did not hold pushes until its image was taken"
            if attempt < ATTEMPTS:
                facts = {"reason": reason, "attempt": attempt}
                log.warning("worker.checkpoint_begun_again", extra=facts)
                continue
        paused_s = round(max(float(each.fields["paused_s"]) for each in answers), 3)
        cut = Cut(consistent=not reason, reason=reason, paused_s=paused_s)
        return Begun(name, answers, cut, author, _are_increments(answers))


async def end_everywhere(pservers: PServers, begun: Begun) -> list[Message]:
    """Return what each pserver has written, when all have; runs on the communicator's loop.

    Raises:
        SaveGoneError: if a pserver started again meanwhile: save again.
        FleetError: if a pserver couldn't write its part. None writes any more then.
    """
    fields = {**begun.author.fields(), "apart": begun.name, "wait_s": POLL_S}
    timeout_s = POLL_S + pservers.call_timeout_s

    async def written(server: int) -> Message:
        while True:
            answer = await pservers.call_one(server, "saved", fields, timeout_s=timeout_s)
            if answer.fields["done"]:
                return answer

    servers = range(len(begun.answers))
    return answers_of(await asyncio.gather(*map(written, servers), return_exceptions=True))


def _are_increments(answers: Sequence[Message]) -> bool:
    return all(each.fields["increment"] for each in answers)


async def _save(pservers: PServers, fields: dict[str, Any]) -> list[Message]:
    return await pservers.call_all("save", fields, timeout_s=pservers.step_timeout_s)


async def _hold(pservers: PServers, hold: Mapping[str, Any], clock: Clock) -> str:
    """Hold all pushes at one moment; return why that couldn't be had, or nothing."""
    began = clock.monotonic()
    targets: list[list[Any]] = []
    pause_s = _FIRST_POLL_S
    while True:
        fields = {**hold, "for_s": HOLD_S, "targets": targets}
        answers = await pservers.call_all("hold", fields)
        verdict = judge([answer.fields for answer in answers])
        if verdict.agree or verdict.hopeless:
            return verdict.reason
        waited_s = clock.monotonic() - began
        if waited_s >= PATIENCE_S:
            return f"{verdict.reason}, after {waited_s:.0f} s"
        targets = verdict.targets
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_POLL_S)


async def _let_go(pservers: PServers, hold: Mapping[str, Any]) -> None:
    """End what is held; where that fails it ends by itself."""
    try:
        fields = {**hold, "for_s": 0, "targets": []}
        await pservers.call_all("hold", fields, timeout_s=_LET_GO_S)
    except FleetError:
        return


def _refused(source: Source, found: Sequence[_Taken]) -> str:
    """Return which push is in some pservers alone for good, in words; empty for none."""
    voided = sorted({sequence for each in found for sequence in each.voided})
    for sequence in voided:
        refused = [sequence in each.voided for each in found]
        kept = [
            server
            for server, each in enumerate(found)
            if each.has(sequence) and not refused[server]
        ]
        if kept:
            return (
                f"pserver {refused.index(True)} refused push {sequence} of worker {source[0]}, "
                f"which pserver {kept[0]} has"
            )
    return ""


def _lack(
    source: Source, found: Sequence[_Taken], *, behind: int, ahead: int, is_gone: bool
) -> str:
    worker, life = source
    missing = [
        sequence
        for sequence in (found[behind].end, *found[ahead].later)
        if found[ahead].has(sequence) and not found[behind].has(sequence)
    ]
    which = f"push {missing[0]}" if missing else "pushes"
    why = f", whose process {life} is gone" if is_gone else ""
    return f"pserver {behind} lacks {which} of worker {worker}, which pserver {ahead} has{why}"


def _different_steps(answers: Sequence[Message]) -> str:
    """Return in what the pservers' steps differ, in words; empty if they don't."""
    steps = [step for answer in answers for step in answer.fields["steps"]]
    if len(set(steps)) == 1:
        return ""
    return f"the pservers saved after different steps: {', '.join(map(str, steps))}"
