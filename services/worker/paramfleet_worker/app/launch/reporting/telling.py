"""What a launch says of itself: what it starts, how far the job is, and how it ended."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paramfleet_shared.errors import FleetError
from paramfleet_shared.settings.config import without_password
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.open_files import MORE_OPEN_FILES
from paramfleet_worker.app.launch.planning import REDIS
from paramfleet_worker.app.launch.preparing import PreparedLaunch
from paramfleet_worker.app.launch.reporting.advice import Advice
from paramfleet_worker.app.launch.reporting.newest import newest_beside
from paramfleet_worker.app.launch.reporting.page_link import show_page
from paramfleet_worker.app.launch.reporting.reasons import HasOutput, how_of, reason_of
from paramfleet_worker.app.launch.reporting.verdict import Verdict, short_path
from paramfleet_worker.core.checkpoints.command_line import RESUME_FROM
from paramfleet_worker.core.doctor.machine import FEW_FILES
from paramfleet_worker.core.events import Dismiss, Excuse, ProcessName, Report
from paramfleet_worker.core.showing.disks import DiskFaults
from paramfleet_worker.core.showing.reports import Course
from paramfleet_worker.core.showing.returns import Returns
from paramfleet_worker.core.showing.saved import Saved, saved_of
from paramfleet_worker.process.log_file import LogFile
from paramfleet_worker.process.terminal.console import Console
from paramfleet_worker.storage import JobRecords, Published

if TYPE_CHECKING:
    from paramfleet_worker.app.operating import Operator

__all__ = ["LAST_OUTPUT_WITHIN_S", "Telling"]

LAST_OUTPUT_WITHIN_S = 0.3
"""How long the output of a process that ended may take to come through its pipe."""

_NO_STATUS = (FleetError, OSError, ArithmeticError, KeyError, TypeError, ValueError)
"""What may come of a coordinator that is restarting, or whose answer isn't one. No such thing
ends a job."""

_DATA_DIR = "PARAMFLEET_PSERVER__DATA_DIR"
"""Variable of the setting of that name."""

LOOK_EVERY_S = 0.5
"""Seconds between two looks at how far the job is."""


class Telling:
    """The launcher's words to its user. Belongs to its event loop.

    Args:
        prepared: What is started.
        console: Where they are shown.
        clock: Measures how long the job takes, and paces the looks at it.

    Raises:
        OSError: if the launcher's log can't be written.
    """

    def __init__(self, prepared: PreparedLaunch, console: Console, clock: Clock) -> None:
        self._prepared = prepared
        self._plan = prepared.plan
        self._console = console
        self._clock = clock
        self._course = Course(clock.monotonic())
        folder = self._plan.data_dir or prepared.environment.get(_DATA_DIR, "")
        self._disks = DiskFaults(str(folder))
        self._returns = Returns(has_disk=bool(folder), is_planned=self._plan.groups > 0)
        console.listen(self._hear)
        self._asked: tuple[Operator, HasOutput] | None = None
        """Who asks which process how the job is; the token is shown to no other."""

        self._look = asyncio.Event()
        self._published: Mapping[int, Mapping[str, Any]] = {}
        self._saved: Saved | None = None
        """The newest checkpoint."""
        self._was_ended = False
        """Whether an operator has ended the training."""
        self._verdict: Verdict | None = None
        self._advice = Advice(self._plan)
        self._log = LogFile(self._plan.own_log, console.say)
        console.keep(self._log)

    def close(self) -> None:
        """Write no more to the launcher's log."""
        self._console.end_drawing()
        self._log.close()

    def begin(self, open_files: int) -> None:
        """Say what is to be started, and how to see more of it.

        Args:
            open_files: How many a process may have.
        """
        for line in self._prepared.lines:
            if line.startswith("warning: "):
                self._console.say(line)
            else:
                self._console.note(line)
        if open_files < FEW_FILES:
            limit = f"the limit of open files is {open_files} (ulimit -n), which is few"
            self._console.say(f"warning: {limit} for a job: {MORE_OPEN_FILES}")

    def members(self) -> None:
        """Say what is started now."""
        plan, facts = self._plan, self._plan.facts
        workers = _count(len(facts.topology.workers), "worker")
        servers = _count(plan.num_processes, "pserver")
        groups = f" for {_count(plan.groups, 'group')}" if plan.groups else ""
        logs = f"logs in {short_path(facts.log_dir)} (--verbose shows them here)"
        self._console.tell(f"job {facts.job}: {workers}, {servers}{groups}; {logs}")
        self._console.note(
            f"coordinator {facts.topology.coordinator.text}, "
            f"Redis {without_password(facts.redis)}"
        )

    # -- the middle

    async def page(self, records: JobRecords, coordinator: HasOutput) -> None:
        """Say where the coordinator's page is, which is elsewhere after each of its starts."""
        operator = await show_page(
            self._prepared,
            records,
            self._console,
            coordinator,
            is_over=lambda: self._verdict is not None,
        )
        if operator is not None and not coordinator.ended:
            self._asked = operator, coordinator

    def end_page(self) -> None:
        """Forget where the coordinator was, which has ended: its port may be anybody's.

        Who holds the port then would get our token, or that of a command.
        """
        self._asked = None
        with contextlib.suppress(OSError):
            self._prepared.folder.admin_url_file.unlink()

    async def watch(self) -> None:
        """Show how far the job is, until this is cancelled."""
        while True:
            operator = self._operator
            if operator is not None:
                with contextlib.suppress(*_NO_STATUS):
                    status = await asyncio.to_thread(operator.get, "status")
                    self._show(status)
            self._console.let_old_go(self._clock.monotonic())
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._look.wait()

    @property
    def _operator(self) -> "Operator | None":
        """Return who asks the coordinator; None while there is none that serves."""
        return None if self._asked is None or self._asked[1].ended else self._asked[0]

    def look(self) -> None:
        """Look at once: a process has ended, and soon nobody answers."""
        self._look.set()

    def note_end(self, name: ProcessName) -> None:
        """Note that a process has ended: it may be started again, and then be back."""
        if name.role == "pserver":
            self._returns.note_death(name, self._clock.monotonic())

    def excuse(self, action: Excuse) -> None:
        """Say that a worker failed that was started again too late."""
        self._console.say(
            f"{action.name.label} {action.how} after the job had finished: it was "
            "started again too late; what its script does after the training may be "
            "missing"
        )

    def dismiss(self, action: Dismiss) -> None:
        """Say why processes are stopped that didn't end by themselves."""
        names = ", ".join(name.label for name in action.names)
        self._console.say(
            f"all workers have ended well; stopping {names}: the coordinator was "
            "started again and may not know it"
        )

    # -- the end

    def note_published(self, published: Published) -> None:
        """Note what the workers published last, if anything is known of that."""
        self._published = published.workers or self._published
        self._saved = saved_of(published.workers) or self._saved
        self._was_ended = self._was_ended or published.ends

    async def report(self, cause: Report, child: HasOutput | None, *, num_alive: int) -> None:
        """Say what ended the job: who failed, and why, where it was, and what to do.

        Args:
            cause: Which process it was, and how.
            child: That process, if it is here.
            num_alive: How many others there are.
        """
        if child is not None and child.ended:
            await child.drained(LAST_OUTPUT_WITHIN_S)
        self._console.end_drawing()
        reason, found = reason_of(cause, child)
        where = "" if cause.local or cause.name == REDIS else " on another machine"
        self._verdict = Verdict(
            begin="the job failed",
            who=f"{cause.name.label}{where}",
            how=how_of(cause),
            reason=reason,
            found=found,
            advice=self._advice.about(
                cause.name, how=cause.how, reason=reason, local=cause.local
            ),
            log=None if child is None else child.log,
            log_dir=self._plan.facts.log_dir,
            tail=_no_lines if child is None else child.tail,
        )
        stopping = f"; stopping the other {num_alive} processes" if num_alive else ""
        self._verdict.show(self._console, stopping=stopping)

    def last_words(self, code: int) -> None:
        """Say how the job ended."""
        self._console.end_drawing()
        self._console.let_all_go()
        if code or self._was_ended:
            self._say_saved()
        if self._verdict is not None:
            self._console.fail(self._verdict.last(self._console))
            return
        well = "ended by `paramfleet end` after" if self._was_ended else "finished after"
        ended = well if code == 0 else "stopped after"
        self._course.end(self._published, finished=code == 0)
        course = self._course.result(self._clock.monotonic(), finished=code == 0)
        logs = f"logs in {short_path(self._plan.facts.log_dir)}"
        self._console.tell(f"{ended} {course}; {logs}")

    def _say_saved(self) -> None:
        """Say which checkpoint this job has written last, and how to go on from there.

        Where it has written none, that is the one with which it began, if it had one.
        """
        newest = None if self._saved is None else newest_beside(self._saved)
        begun = self._prepared.environment.get(RESUME_FROM, "")
        if newest is not None:
            step = "" if newest.step is None else f" (step {newest.step:,})"
            folder, told = newest.folder, f"newest checkpoint: {newest.folder}{step}"
        elif begun:
            folder, told = begun, f"no checkpoint saved yet; the job began from {begun}"
        else:
            return
        again = self._prepared.again
        how = f"{again.same}, go on with" if again.same else "go on with"
        self._console.say(f"{told}; {how}: {again.resuming(folder)}")

    def _hear(self, name: ProcessName, line: bytes) -> None:
        if self._verdict is not None:
            return
        if words := self._returns.hear(name, line, self._clock.monotonic()):
            self._console.say(words)

    def _show(self, status: Mapping[str, Any]) -> None:
        for line in self._disks.see(status, self._clock.monotonic()):
            self._console.say(line)
        told = self._course.see(status, self._clock.monotonic())
        if told is None:
            return
        if told.line and self._console.draws:
            self._console.record(told.line)
        elif told.line:
            self._console.tell(told.line)
        self._console.draw(told.parts, told.share)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _no_lines(num_lines: int) -> list[str]:
    """Return the lines of a log that isn't here."""
    del num_lines
    return []
